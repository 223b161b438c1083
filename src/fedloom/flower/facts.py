"""The facts of a dataclass as a message carries them: a strict pydantic model that is derived from its fields.

The server believes no node, so every field has a bound: the `Field` in its annotation, or else that of its type here. A
field without a bound ends the import.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from fedloom.core.errors import printable
from fedloom.engine.jobs import field_types
from fedloom.evaluation.metric import Metric

Count: TypeAlias = Annotated[int, Field(ge=0, lt=2**63)]
Name: TypeAlias = Annotated[str, Field(max_length=200)]
_MAX_ELEMENTS, _MAX_KEYS = 16, 64  # of a sequence, of a mapping
_UPPER_BOUNDS = ("le", "lt", "max_length", "pattern", "allow_inf_nan")  # arguments of `Field`, one of which is needed
_BY_TYPE: Mapping[Any, Any] = {
    bool: bool,
    int: Count,
    float: float,
    str: Name,
    type(None): None,
    Metric: Annotated[Mapping[Name, Any], Field(max_length=_MAX_KEYS)],  # `MetricStates.from_plain` checks the values
}

_SCALARS = (bool, int, float, str, type(None))


class Facts(BaseModel):
    """Facts that are read strictly."""

    # A loss that is not finite must be able to travel: the server reports it as the simulation does.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")


def derive_model(kind: Any, base: type[Facts], without: Collection[str] = (), /, **more: Any) -> type[Any]:
    """Return a subclass of `base` with the fields of a dataclass.

    Args:
        kind: the dataclass.
        base: class of the facts of one kind of message.
        without: names of fields that are left out.
        more: further fields, as `pydantic.create_model` takes them.

    Raises `TypeError` for a field that has no bound, or the name of another fact.
    """
    derived: dict[str, Any] = {}
    for name, type_ in field_types(kind, bounds=True).items():
        if name in without:
            continue
        if name in base.model_fields or name in more:
            raise TypeError(f"{kind.__name__}.{name}: every message has a fact of this name; use another one")
        try:
            derived[name] = (_bounded(type_), ...)
        except _UnboundedError as error:
            raise TypeError(
                f"{kind.__name__}.{name}: {error} has no bound in a message; use numbers, texts, mappings, sequences "
                "or dataclasses of them, or send it in the payload"
            ) from None
    return create_model(f"{kind.__name__}Facts", __base__=base, __doc__=kind.__doc__, **derived, **more)


@functools.cache
def facts_model(kind: Any) -> type[Facts]:
    """Return the model of a dataclass with all its fields."""
    return derive_model(kind, Facts)


def restore_fields(facts: BaseModel, kind: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that `facts` has, with printable text; states of metrics stay plain."""
    types_ = field_types(kind)
    shared = [name for name in types_ if name in type(facts).model_fields]
    return {name: _restored(getattr(facts, name), types_[name]) for name in shared}


class _UnboundedError(Exception):
    """A type that has no bound."""


def _bounded(type_: Any) -> Any:
    """Return the type of a field, with bounds. Raises `_UnboundedError`."""
    bounds: list[Any] = []
    if get_origin(type_) is Annotated:
        type_, *metadata = get_args(type_)
        bounds = [entry for entry in metadata if isinstance(entry, FieldInfo) and _has_upper_bound(entry)]
    origin, arguments = get_origin(type_), get_args(type_)
    if origin is Literal:
        return type_
    if origin in (Union, types.UnionType) and all(argument in _SCALARS for argument in arguments):
        return Union[tuple(_BY_TYPE[argument] for argument in arguments)]  # noqa: UP007 (of a tuple)
    if origin in (dict, Mapping):
        key, value = map(_bounded, arguments)
        return Annotated[Mapping[key, value], *(bounds or [Field(max_length=_MAX_KEYS)])]  # type: ignore[valid-type]
    if origin in (list, Sequence):
        element = _bounded(arguments[0])
        return Annotated[Sequence[element], *(bounds or [Field(max_length=_MAX_ELEMENTS)])]  # type: ignore[valid-type]
    if bounds and type_ in _SCALARS:
        return Annotated[type_, *bounds]
    if isinstance(type_, Hashable) and type_ in _BY_TYPE:
        return _BY_TYPE[type_]
    if isinstance(type_, type) and is_dataclass(type_):
        return facts_model(type_)
    raise _UnboundedError(getattr(type_, "__name__", str(type_)))


def _has_upper_bound(field: FieldInfo) -> bool:
    return any(getattr(entry, name, None) is not None for entry in field.metadata for name in _UPPER_BOUNDS)


def _restored(value: Any, type_: Any) -> Any:
    """Return a field's value with dataclasses again in place of their facts."""
    if isinstance(value, BaseModel):
        return type_(**restore_fields(value, type_))
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping) and type_ is not Metric:
        return {key: _restored(element, get_args(type_)[1]) for key, element in value.items()}
    if isinstance(value, Sequence):
        return [_restored(element, get_args(type_)[0]) for element in value]
    return value
