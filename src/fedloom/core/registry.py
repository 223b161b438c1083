"""Named things that can be listed, looked up and extended by third parties.

A registry belongs to one noun ("method", "model", ...). Built-in entries come in when the modules of their home
package are imported, on the first lookup, others through Python entry points of the group `fedloom.<noun>s`:

    [project.entry-points."fedloom.methods"]
    mine = "my_package.my_method:Mine"

An entry point that cannot be loaded is named once, in a warning, and left out: everything else goes on.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from fedloom.core.errors import ConfigError, nearest, shown

T = TypeVar("T")
_log = logging.getLogger(__name__)  # unless a program says otherwise, a warning is one line on stderr


class Registry(Generic[T]):
    """Maps names to things of one noun. A name is taken once: registering another thing by it is an error.

    A class or function that is defined again, as when a cell of a notebook runs twice, takes the place of the first.
    """

    def __init__(self, noun: str, *, home: str) -> None:
        """`noun` is used in messages and for the entry-point group; the modules of package `home` register the
        built-ins."""
        self.noun, self._home = noun, home
        self._items: dict[str, T] = {}
        self._broken: dict[str, str] = {}  # entry points that could not be loaded: name -> why
        self._loaded = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator: enter the decorated thing as `name`. Raises `ConfigError` if the name is taken."""

        def enter(item: T) -> T:
            if name in self._items and not _again(self._items[name], item):
                raise ConfigError(
                    f"{self.noun} '{name}' is registered already by {self._items[name]!r}; choose another name"
                )
            self._items[name] = item
            return item

        return enter

    def get(self, name: str) -> T:
        """The thing called `name`. Raises `ConfigError` with the nearest known name, or why its plug-in is broken."""
        self._load()
        if name not in self._items:
            why = self._broken.get(name) or nearest(name, self._items)
            raise ConfigError(f"unknown {self.noun} {shown(name)}: {why}")
        return self._items[name]

    def names(self) -> list[str]:
        """All names, sorted."""
        self._load()
        return sorted(self._items)

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._items

    def __iter__(self) -> Iterator[tuple[str, T]]:
        self._load()
        return iter(sorted(self._items.items()))

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # before the import: the home package may ask this registry while it loads
        try:
            package = importlib.import_module(self._home)
            for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{self._home}."):
                importlib.import_module(module.name)
            for entry in entry_points(group=f"fedloom.{self.noun}s"):
                self._add(entry)
        except BaseException:
            self._loaded = False  # the next call must fail in the same way, not find half a registry
            raise

    def _add(self, entry: EntryPoint) -> None:
        try:
            item = entry.load()
            if not callable(item):
                raise TypeError(f"{entry.value} is no class or function")
            self.register(entry.name)(item)
        except (Exception, SystemExit) as error:  # whatever a foreign package does when it is imported
            package = f" of {entry.dist.name}" if entry.dist else ""
            why = " ".join(f"{type(error).__name__}: {error}".split())
            self._broken[entry.name] = f"the plug-in{package} cannot be loaded ({why})"
            if multiprocessing.parent_process() is None:  # workers leave the word to their parent
                _log.warning("%s '%s' is left out: %s", self.noun, entry.name, self._broken[entry.name])


def _again(known: object, item: object) -> bool:
    """Whether `item` is the known thing, or its definition run once more."""
    places = [(getattr(one, "__module__", None), getattr(one, "__qualname__", None)) for one in (known, item)]
    return known is item or (places[0] == places[1] and None not in places[0])
