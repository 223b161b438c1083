"""How a wrapper is put over a method: one class with the options and presets of both, each part with its own names.

Wrappers nest in any order: `fedprox+dw+topk`. A wrapper is a mixin of `Method` that calls `super()` in its hooks,
strips its own entries from records that it passes on (`Names.without`), and refuses methods in `__init__`, by `Spec`.
All of them are one object: attributes that a wrapper sets need names that no other wrapper or method has."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic import BaseModel, create_model

from fedloom.core.errors import ConfigError
from fedloom.core.records import Record
from fedloom.methods.contract.method import METHODS, Method, Uploads

O = TypeVar("O", bound=BaseModel)  # noqa: E741


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a wrapper's options and entries: `word_tau` and "word.table", or plain names where it is a method."""

    word: str
    wraps: bool

    def entry(self, name: str) -> str:
        return f"{self.word}.{name}" if self.wraps else name

    def options(self, kind: type[O], options: Any) -> O:
        prefix = f"{self.word}_" if self.wraps else ""
        return kind(**{name: getattr(options, prefix + name) for name in kind.model_fields})

    def without(self, record: Record, *names: str) -> Record:
        """Return `record` without the wrapper's entries `names`, because the wrapped method may pass on all others."""
        entries = {self.entry(name) for name in names}
        return {name: value for name, value in record.items() if name not in entries}


def names_of(method: Method, word: str) -> Names:
    """The names of the wrapper `word` in a method."""
    return Names(word, word in method.wrappers)


def averaged(method: Method, wrapper: str) -> set[str]:
    """Return the upload entries whose mean is all that the server needs. Raises `ConfigError` if there is none."""
    names = {name for name, sent in method.spec.sends.items() if not sent.per_client}
    if not names:
        sent_names = ", ".join(method.spec.sends) or "nothing"
        raise ConfigError(
            f"{method.name()}: {wrapper} replaces the mean of what clients send, and here there is none "
            f"(sent: {sent_names})"
        )
    return names


def alone(base: type[Method], word: str, others: Collection[str], has: str, why: str) -> None:
    """Raise `ConfigError` if `base` is in one of the wrappers `others`: it `has` one, and `word` `why`."""
    if set(base.wrappers) & (set(others) - {word}):
        raise ConfigError(f"{base.name()} has {has} already: {word} {why}; take one")


def wrapped(
    mixin: type[Method],
    base: type[Method],
    word: str,
    options: type[BaseModel],
    presets: Mapping[str, Mapping[str, Any]] | None = None,
) -> type[Method]:
    """Create the method `base+word`: the class `mixin`, with hooks that call `super()`, over `base`. The wrapper's
    `options` join the base's with `word_` in front, and so do its `presets`."""
    if issubclass(base, mixin):
        raise ConfigError(f"{base.name()} has {word} already: a method takes a wrapper once")
    prefix, wrapper_presets, own_fields = f"{word}_", presets or {}, options.model_fields.items()
    fields: dict[str, Any] = {prefix + name: (field.annotation, copy(field)) for name, field in own_fields}
    title = f"{base.__name__}{word.upper()}"
    combined_options = create_model(f"{title}Options", __base__=base.Options, **fields)
    body = {
        "__doc__": f"{base.__name__} with {word}: see {base.__module__} and {mixin.__module__}.",
        "__reduce__": lambda self: (_restored, (self.name(), self.options.model_dump())),
        "name": classmethod(lambda cls: f"{base.name()}+{word}"),
        "wrappers": (*base.wrappers, word),
        "Options": combined_options,
        "presets": {
            name: {
                **base.presets.get(name, {}),
                **{prefix + key: value for key, value in wrapper_presets.get(name, {}).items()},
            }
            for name in dict.fromkeys([*base.presets, *wrapper_presets])
        },
    }
    return cast("type[Method]", type(title, (mixin, base), body))


def _restored(name: str, options: dict[str, Any]) -> Method:
    """Restore a wrapped method in another process, because its class has no importable name."""
    method = METHODS.get(name)
    return method(method.Options(**options))


class Changed(Mapping[int, Record]):
    """Uploads, or those of some `clients`, each read and changed by `change(client, upload)` on access. The last is
    kept: a mean asks for upload and weight in turn."""

    def __init__(
        self, uploads: Uploads, change: Callable[[int, Record], Record], clients: Sequence[int] | None = None
    ) -> None:
        self._uploads, self._change = uploads, change
        self._clients: Uploads | dict[int, None] = uploads if clients is None else dict.fromkeys(clients)
        self._last: tuple[int, Record] | None = None

    def __getitem__(self, client: int) -> Record:
        if self._last is None or self._last[0] != client:
            if isinstance(self._clients, dict) and client not in self._clients:
                raise KeyError(client)
            self._last = client, self._change(client, self._uploads[client])
        return self._last[1]

    def __iter__(self) -> Iterator[int]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)
