"""Comparable keys of phases, and the constants of a round as a structure with leaves, like pytrees in JAX.

Keys are equal for clients that do the same, although every client has its own function objects."""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from operator import attrgetter
from types import FunctionType, MethodType
from typing import Any, TypeAlias

import torch
from torch import Tensor

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
    """Return the `values_of` phases that have, at a glance, the key of this one; None if a field may change later."""
    values, types = values_of(phase)
    if not all(map(_is_fixed, values)):
        return None
    return tuple([dict(value) if type(value) is dict else value for value in values]), types  # they may change later


def values_of(phase: Phase) -> tuple[tuple[Any, ...], tuple[type, ...]]:
    """Return the values of a phase's fields, and their types."""
    values = _READ[type(phase)](phase)  # one call in C for all fields, because every client asks
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
    """Whether a function refers to nothing that may change, apart from globals and its owner."""
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
    # by the owner's identity: two objects of one class may differ in options
    owner, unbound = getattr(function, "__self__", None), getattr(function, "__func__", function)
    code = getattr(unbound, "__code__", None)
    if code is None:
        return id(function)
    cells = tuple(_key(cell.cell_contents) for cell in unbound.__closure__ or ())
    return id(owner), code, cells, _key(unbound.__defaults__), _key(unbound.__kwdefaults__)


Leaf: TypeAlias = Tensor | float
_FIELD_NAMES: dict[type, tuple[str, ...]] = {}  # asked for very often


def structure_of(value: Any) -> Hashable:
    """Return all of the constants but the values of tensors and numbers. Clients that share it can be stacked."""
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), value.dtype)
    if names := _field_names(type(value)):
        return ("dataclass", type(value), tuple([structure_of(getattr(value, name)) for name in names]))
    if isinstance(value, dict):
        return ("dict", tuple([(name, structure_of(child)) for name, child in value.items()]))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple([structure_of(child) for child in value]))
    return ("number",) if _is_number(value) else ("plain", value)


def leaves_of(value: Any) -> list[Leaf]:
    """Return the tensors and numbers in constants, in order."""
    leaves: list[Leaf] = []
    _add_leaves(value, leaves)
    return leaves


def _add_leaves(value: Any, leaves: list[Leaf]) -> None:
    if isinstance(value, Tensor) or _is_number(value):
        leaves.append(value)
    elif isinstance(value, dict):
        for child in value.values():
            _add_leaves(child, leaves)
    elif isinstance(value, list | tuple):
        for child in value:
            _add_leaves(child, leaves)
    else:
        for name in _field_names(type(value)):
            _add_leaves(getattr(value, name), leaves)


def layout_of(value: Any) -> tuple[list[Tensor], Hashable]:
    """Return the tensors in constants, in order, and a key of all but their values, with memory layout and sharing."""
    tensors: list[Tensor] = []
    parts: list[Hashable] = []
    _add_layout(value, tensors, {}, parts)
    return tensors, tuple(parts)


def _add_layout(value: Any, tensors: list[Tensor], first: dict[int, int], parts: list[Hashable]) -> None:
    if isinstance(value, Tensor):
        parts.append((value.shape, value.dtype, value.stride(), first.setdefault(id(value), len(tensors))))
        tensors.append(value)
    elif isinstance(value, dict):
        parts.append(("dict", *value))
        for child in value.values():
            _add_layout(child, tensors, first, parts)
    elif isinstance(value, list | tuple):
        parts.append((type(value), len(value)))
        for child in value:
            _add_layout(child, tensors, first, parts)
    elif names := _field_names(type(value)):
        parts.append(("fields", type(value)))
        for name in names:
            _add_layout(getattr(value, name), tensors, first, parts)
    else:
        parts.append((type(value), value))


def from_leaves(structure: Any, leaves: Iterator[Any]) -> Any:
    """Return the constants of a `structure_of`, with these leaves."""
    kind, *details = structure
    if kind in ("tensor", "number"):
        return next(leaves)
    if kind == "dataclass":
        return details[0](*(from_leaves(child, leaves) for child in details[1]))
    if kind == "dict":
        return {name: from_leaves(child, leaves) for name, child in details[0]}
    if kind in ("list", "tuple"):
        children = [from_leaves(child, leaves) for child in details[0]]
        return children if kind == "list" else tuple(children)
    return details[0]


def to_device(value: Any, device: torch.device) -> Any:
    """Return constants with their tensors on a device; the same object if they are there already."""
    leaves = leaves_of(value)
    if all(leaf.device == device for leaf in leaves if isinstance(leaf, Tensor)):
        return value
    moved = (leaf.to(device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return from_leaves(structure_of(value), moved)


def is_common(stacked: Tensor) -> bool:
    """Whether all rows of a stack are the same memory."""
    return stacked.stride(0) == 0


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a class table or another dataclass of tensors; none of another class."""
    if kind not in _FIELD_NAMES:
        _FIELD_NAMES[kind] = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
    return _FIELD_NAMES[kind]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
