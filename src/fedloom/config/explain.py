"""What was wrong with a config, in one line: the key, the value, why, and where the key belongs."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedloom.core.errors import ConfigError, UnknownKeyError, short_repr
from fedloom.core.registry import Registry

# Pydantic's words for what a section is, in those of a config.
_SECTION = "a section holds keys with values, as {key: value} or key.name=value"
_WORDS = {"model_type": _SECTION, "dataclass_type": _SECTION, "dict_type": _SECTION, "tuple_type": "need a list"}


def explained(error: ValidationError, section: str, model: type[BaseModel], also: Sequence[str] = ()) -> ConfigError:
    """The first problem that pydantic found, as an error. `section`: where `model` stands ("" for the top); `also`:
    keys that it takes beside its own."""
    first = error.errors()[0]
    location = [str(part) for part in first["loc"] if part not in ("str", "ModelConfig")]  # of the union for models
    key = ".".join([*filter(None, [section]), *location])
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = keys_at(model, location[:-1])
        return UnknownKeyError(key.rpartition(".")[0], location[-1], {*known, *(also if len(location) == 1 else ())})
    if first["type"] == "missing":
        return ConfigError(f"{key} is missing: {model.__name__} needs it")
    message = _WORDS.get(first["type"], f"{first['msg'][0].lower()}{first['msg'][1:]}")
    return ConfigError(f"{key} = {short_repr(first['input'])}: {message}")


def elsewhere(error: UnknownKeyError, places: Mapping[str, Sequence[str]]) -> ConfigError:
    """The error with a hint across levels: sections that know the key, else those that know one much like it, unless
    its own does. `places`: the sections that know a key, by its name, the likeliest first."""
    near = (
        []
        if error.key in places
        else difflib.get_close_matches(error.key, [*error.known_keys, *places], 1, cutoff=0.75)
    )
    name = near[0] if near else error.key
    paths = [f"{at}.{name}" if at else name for at in places.get(name, ()) if at != error.section]
    if not paths or (near and name in error.known_keys):
        return error
    return ConfigError(error.message_with(f"did you mean {' or '.join(map(repr, paths[:3]))}?"))


def named_part(kinds: Registry[Any], given: Mapping[str, Any], place: str) -> Any:
    """What `{name: ..., its keys}` at `place` of a config says. Raises `ConfigError` for what is not known."""
    keys = {str(key): value for key, value in given.items() if key != "name"}
    if not isinstance(given.get("name"), str):
        raise ConfigError(f"{place}: need a name; known: {', '.join(kinds.names())}")
    kind = kinds.get(given["name"])
    try:
        return kind(**keys)
    except ValidationError as error:
        raise explained(error, place, kind) from None


def sections(model: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Section and name of every key below a model or a pydantic dataclass."""
    for name, field in (fields_of(model) or {}).items():
        yield at, name
        for kind in (field.annotation, *get_args(field.annotation)):
            yield from sections(kind, f"{at}.{name}" if at else name)


def keys_at(model: Any, path: Sequence[str]) -> set[str]:
    """The keys of the section at `path`: a pydantic model, or a pydantic dataclass."""
    fields = fields_of(model) or {}
    for part in path:
        annotation = fields[part].annotation if part in fields else None
        found = [kind for kind in (annotation, *get_args(annotation)) if fields_of(kind) is not None]
        if not found:
            return set()
        fields = fields_of(found[0]) or {}
    return set(fields)


def fields_of(kind: Any) -> Mapping[str, Any] | None:
    """The fields of a pydantic model or dataclass, by name; None for anything else."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_fields
    found: Mapping[str, Any] | None = getattr(kind, "__pydantic_fields__", None)
    return found
