"""Keys of phases, equal for clients that do the same, although every client has function objects of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any

from fedloom.methods.contract.phases import Choose, Collect, OptimizerSpec, Phase, Train

_PLAIN_TYPES = frozenset({int, float, str, bytes, bool, type(None)})
_FIXED_TYPES = _PLAIN_TYPES | {OptimizerSpec, type}
_FUNCTION_TYPES = (FunctionType, MethodType)
_PHASE_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in (Train, Collect, Choose)}
_READ = {kind: attrgetter("__class__", *names) for kind, names in _PHASE_FIELDS.items()}


def phase_key(phase: Phase) -> Hashable:
    """Return a key that is equal for phases that do the same, as long as both are alive. It covers every field."""
    return type(phase), tuple([_key(getattr(phase, name)) for name in _PHASE_FIELDS[type(phase)]])


def glance_of(phase: Phase) -> Hashable:
    """Return what `values_of` gives for phases that are seen at a glance to have the key of this one.

    None if a field has an object that may have changed since: keys are made of what it contains at the time.
    """
    values, types = values_of(phase)
    if not all(map(_is_fixed, values)):
        return None
    return tuple([dict(value) if type(value) is dict else value for value in values]), types  # they may change later


def values_of(phase: Phase) -> tuple[tuple[Any, ...], tuple[type, ...]]:
    """Return the values of a phase's fields, and their types."""
    values = _READ[type(phase)](phase)
    return values, tuple(map(type, values))


def _is_fixed(value: Any) -> bool:
    """Whether a field that equals this value later has the same key."""
    kind = type(value)
    if kind in _FUNCTION_TYPES:
        return _is_fixed_function(value.__func__ if kind is MethodType else value)
    if kind in (frozenset, tuple):
        return all(map(_is_fixed, value))
    if kind is dict:  # equal dictionaries of several entries may have another order
        return len(value) < 2 and all(map(_is_fixed, value.values()))
    if is_dataclass(kind) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return all(_is_fixed(getattr(value, field.name)) for field in fields(kind))
    return kind in _FIXED_TYPES or isinstance(value, Enum)


def _is_fixed_function(function: Any) -> bool:
    """Whether a function refers to nothing that may change, apart from what is global or its owner's."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return function.__defaults__ is None and function.__kwdefaults__ is None and all(type(c) is type for c in cells)


def _key(value: Any) -> Hashable:
    """A key that is equal for equal values; objects that cannot be compared are distinguished by identity."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return kind, value
    if kind in _FUNCTION_TYPES:
        return _function_key(value)
    if isinstance(value, Enum):
        return value
    if isinstance(value, Mapping):
        return "mapping", tuple((name, _key(child)) for name, child in value.items())
    if isinstance(value, list | tuple):
        return "sequence", tuple(map(_key, value))
    if isinstance(value, set | frozenset):
        return "set", frozenset(map(_key, value))
    if is_dataclass(value) and not isinstance(value, type):
        return kind, tuple(_key(getattr(value, field.name)) for field in fields(value))
    return _function_key(value) if callable(value) else id(value)


def _function_key(function: Callable[..., Any]) -> Hashable:
    """A key that is equal for the same method of one object, and for closures of the same code over equal values."""
    if isinstance(function, functools.partial):
        return "partial", _key(function.func), _key(function.args), _key(function.keywords)
    owner, unbound = getattr(function, "__self__", None), getattr(function, "__func__", function)
    code = getattr(unbound, "__code__", None)
    if code is None:
        return id(function)
    cells = tuple(_key(cell.cell_contents) for cell in unbound.__closure__ or ())
    return id(owner), code, cells, _key(unbound.__defaults__), _key(unbound.__kwdefaults__)
