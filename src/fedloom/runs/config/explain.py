"""Errors of a config in one line: the key, the value, why it is wrong, and where the key belongs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from fedloom.core.errors import ConfigError, UnknownKeyError, short_repr
from fedloom.core.registry import Registry

# Pydantic's words for what a section is, in those of a config.
_SECTION = "a section holds keys with values, as {key: value} or key.name=value"
_UNION_MEMBER = re.compile(
    r"str|int|float|bool|ModelConfig|constrained-\w+|literal\[.*|(list|dict|tuple)\[.*|function-.*"
)
_MESSAGES = {"model_type": _SECTION, "dataclass_type": _SECTION, "dict_type": _SECTION, "tuple_type": "need a list"}


def explain_validation_error(
    error: ValidationError, section: str, model: type[BaseModel], more_keys: Sequence[str] = ()
) -> ConfigError:
    """Return the first problem that pydantic found as a `ConfigError`.

    Args:
        error: the error of pydantic.
        section: path of `model` in the config, or "".
        model: the class that was validated.
        more_keys: keys that it accepts beside its fields.
    """
    first = error.errors()[0]
    is_unknown = first["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    typed = first["loc"][-1:] if is_unknown else ()  # may have the name of a kind of value
    path = first["loc"][: len(first["loc"]) - len(typed)]
    location = [str(part) for part in (*(part for part in path if not _is_union_member(part)), *typed)]
    key = ".".join([*filter(None, [section]), *location])
    if is_unknown:
        allowed = keys_at(model, location[:-1])
        return UnknownKeyError(
            key.rpartition(".")[0], location[-1], {*allowed, *(more_keys if len(location) == 1 else ())}
        )
    if first["type"] == "missing":
        return ConfigError(f"{key} is missing: {model.__name__} needs it")
    message = _MESSAGES.get(first["type"], f"{first['msg'][0].lower()}{first['msg'][1:]}")
    if first["type"] in ("too_short", "too_long"):  # pydantic names a Python type, and counts after a validation
        bound, limit = ("at least", "min_length") if first["type"] == "too_short" else ("at most", "max_length")
        count = first.get("ctx", {}).get(limit, 1)
        message = f"need {bound} {count:,} item{'' if count == 1 else 's'}"
    return ConfigError(f"{key} = {short_repr(first['input'])}: {message}")


def _is_union_member(part: int | str) -> bool:
    """Whether a part of pydantic's location is no key, but the kind of value that a union tried."""
    return isinstance(part, str) and _UNION_MEMBER.fullmatch(part) is not None


def with_hint_across_sections(error: UnknownKeyError, sections: Mapping[str, Sequence[str]]) -> ConfigError:
    """Add a hint to the error: sections that know the key, else sections that know a similar one, unless its own does.

    Args:
        error: the error for an unknown key.
        sections: the sections that know a key, by its name, the likeliest first.
    """
    near = (
        []
        if error.key in sections
        else difflib.get_close_matches(error.key, [*error.known_keys, *sections], 1, cutoff=0.75)
    )
    name = near[0] if near else error.key
    paths = [f"{section}.{name}" if section else name for section in sections.get(name, ()) if section != error.section]
    if not paths or (near and name in error.known_keys):
        return error
    return ConfigError(error.message_with(f"did you mean {' or '.join(map(repr, paths[:3]))}?"))


def build_named(kinds: Registry[Any], values: Mapping[str, Any], path: str) -> Any:
    """Build an entry `{name: ..., its keys}` of a config.

    Args:
        kinds: registry of the classes that `name` chooses from.
        values: the entry.
        path: its key with dots, for messages.

    Returns an object of the chosen class. Raises `ConfigError` for what is not known.
    """
    keys = {str(key): value for key, value in values.items() if key != "name"}
    if not isinstance(values.get("name"), str):
        raise ConfigError(f"{path}: need a name; known: {', '.join(kinds.names())}")
    kind = kinds.get(values["name"])
    try:
        return kind(**keys)
    except ValidationError as error:
        raise explain_validation_error(error, path, kind) from None


def keys_with_sections(model: Any, section: str = "") -> Iterator[tuple[str, str]]:
    """Yield section and name of every key below a model or a pydantic dataclass."""
    for name, field in (fields_of(model) or {}).items():
        yield section, name
        for kind in (field.annotation, *get_args(field.annotation)):
            yield from keys_with_sections(kind, f"{section}.{name}" if section else name)


def keys_at(model: Any, path: Sequence[str]) -> set[str]:
    """Return the keys of the section at `path` of a pydantic model or dataclass."""
    fields = fields_of(model) or {}
    for part in path:
        annotation = fields[part].annotation if part in fields else None
        inner_sections = [kind for kind in (annotation, *get_args(annotation)) if fields_of(kind) is not None]
        if not inner_sections:
            return set()
        fields = fields_of(inner_sections[0]) or {}
    return set(fields)


def fields_of(kind: Any) -> Mapping[str, Any] | None:
    """Return the fields of a pydantic model or dataclass by name; None for anything else."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind.model_fields
    fields: Mapping[str, Any] | None = getattr(kind, "__pydantic_fields__", None)
    return fields
