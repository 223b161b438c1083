"""When two clients do the same: keys of phases, whose functions are made anew for every client."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, MethodType
from typing import Any

from fedloom.methods.contract.phases import Collect, Phase, Train

_PLAIN = frozenset({int, float, str, bytes, bool, type(None)})
_FUNCTIONS = (FunctionType, MethodType)
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in (Train, Collect)}


def phase_key(phase: Phase) -> Hashable:
    """Equal for phases that do the same, as long as both are alive. Every field of a phase counts."""
    return type(phase), tuple([_key(getattr(phase, name)) for name in _FIELDS[type(phase)]])


def _key(value: Any) -> Hashable:
    """Equal for values that mean the same; what cannot be compared is told apart by identity."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind in _FUNCTIONS:
        return _function_key(value)
    if isinstance(value, Enum):
        return value
    if isinstance(value, Mapping):
        return "mapping", tuple((name, _key(one)) for name, one in value.items())
    if isinstance(value, list | tuple):
        return "sequence", tuple(map(_key, value))
    if isinstance(value, set | frozenset):
        return "set", frozenset(map(_key, value))
    if is_dataclass(value) and not isinstance(value, type):
        return kind, tuple(_key(getattr(value, field.name)) for field in fields(value))
    return _function_key(value) if callable(value) else id(value)


def _function_key(function: Callable[..., Any]) -> Hashable:
    """Equal for functions that compute the same: methods of one object, or closures over the same values."""
    if isinstance(function, functools.partial):
        return "partial", _key(function.func), _key(function.args), _key(function.keywords)
    bound, plain = getattr(function, "__self__", None), getattr(function, "__func__", function)
    code = getattr(plain, "__code__", None)
    if code is None:
        return id(function)
    cells = tuple(_key(cell.cell_contents) for cell in plain.__closure__ or ())
    return id(bound), code, cells, _key(plain.__defaults__), _key(plain.__kwdefaults__)
