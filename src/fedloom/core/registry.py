"""Named classes and functions that can be listed, looked up and extended by third parties.

A registry has one noun ("method", "model", ...). Built-in entries are registered when the modules of their home package
are imported: one that is looked up alone if a module has its name, all of them for a list. Others come through Python
entry points of the group `fedloom.<noun>s`:

    [project.entry-points."fedloom.methods"]
    mine = "my_package.my_method:Mine"

An entry point that cannot be loaded is left out with one warning."""

import importlib
import importlib.util
import logging
import multiprocessing
import pkgutil
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from fedloom.core import plugins
from fedloom.core.errors import ConfigError, short_repr, suggest_name

T = TypeVar("T")
_log = logging.getLogger(__name__)  # without configured handlers, a warning is one line on stderr


class Registry(Generic[T]):
    """Maps names to classes or functions. `noun` is used in messages and for the entry-point group; the modules of the
    package `home` register the built-ins. Registering a second entry under a name is an error, except for the same
    definition run again, as in a notebook."""

    def __init__(self, noun: str, *, home: str) -> None:
        self.noun, self._home = noun, home
        self._entries: dict[str, T] = {}
        self._broken: dict[str, str] = {}  # entry points that could not be loaded: name -> reason
        self._loaded = False
        self._plugins_found: tuple[EntryPoint, ...] | None = None

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers a class or function. Raises `ConfigError` if the name is taken."""

        def add_entry(entry: T) -> T:
            # a built-in entry of this name may be in a module that nobody has imported yet
            is_foreign = plugins.loading and not getattr(entry, "__module__", self._home).startswith(self._home)
            is_taken = name in self._entries or (is_foreign and self._is_built_in(name))
            if is_taken and not _same_definition(self._entries[name], entry):
                remedy = "choose another name"
                raise ConfigError(f"{self.noun} '{name}' is registered already by {self._entries[name]!r}; {remedy}")
            named: Any = entry
            if hasattr(entry, "kind"):  # sources, partitions, skews and attacks name themselves in messages
                named.kind = name
            self._entries[name] = entry
            plugins.registrations += 1
            return entry

        return add_entry

    def get(self, name: str) -> T:
        """Return the entry `name`. Raises `ConfigError` with the nearest name, or why its plug-in is broken."""
        if name not in self:
            raise ConfigError(f"unknown {self.noun} {short_repr(name)}: {self.why_unknown(name)}")
        return self._entries[name]

    def why_unknown(self, name: str) -> str:
        """Return why no entry is called `name`: its plug-in is broken, or another name is meant."""
        self._load()
        return self._broken.get(name) or suggest_name(name, self._entries, self.noun)

    def names(self) -> list[str]:
        self._load()
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        if not self._loaded and not self._is_built_in(name):
            self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[tuple[str, T]]:
        self._load()
        return iter(sorted(self._entries.items()))

    def _is_built_in(self, name: object) -> bool:
        """Return whether a name is that of a built-in alone. Import its module if that has the same name: importing
        those of all methods takes a sixth of a second, and a run needs one or two of them."""
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            return False
        if name in {plugin.name for plugin in self._plugins()}:
            return False
        module, is_package = f"{self._home}.{name}", hasattr(importlib.import_module(self._home), "__path__")
        if name not in self._entries and is_package and importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
        return getattr(self._entries.get(name), "__module__", "").startswith(f"{self._home}.")

    def _plugins(self) -> tuple[EntryPoint, ...]:
        if self._plugins_found is None:
            self._plugins_found = tuple(entry_points(group=f"fedloom.{self.noun}s"))
        return self._plugins_found

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True  # before the import, because the home package may use this registry while it loads
        try:
            package = importlib.import_module(self._home)
            for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{self._home}."):
                importlib.import_module(module.name)
            for plugin in self._plugins():
                self._add(plugin)
            plugins.loaded_plugins()
        except BaseException:
            self._loaded = False  # the next call must fail in the same way, not use half a registry
            raise

    def _add(self, plugin: EntryPoint) -> None:
        try:
            entry = plugin.load()
            if not callable(entry):
                raise TypeError(f"{plugin.value} is no class or function")
            self.register(plugin.name)(entry)
        except (Exception, SystemExit) as error:  # whatever a foreign package does when it is imported
            package = f" of {plugin.dist.name}" if plugin.dist else ""
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._broken[plugin.name] = f"the plug-in{package} cannot be loaded ({reason})"
            if multiprocessing.parent_process() is None:  # the parent of worker processes warns for them
                _log.warning("%s '%s' is left out: %s", self.noun, plugin.name, self._broken[plugin.name])


def _same_definition(first: object, second: object) -> bool:
    names = [(getattr(entry, "__module__", None), getattr(entry, "__qualname__", None)) for entry in (first, second)]
    return first is second or (names[0] == names[1] and None not in names[0])
