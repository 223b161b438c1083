"""Constants of a round as a structure and a list of leaves (tensors and numbers), and back, as pytrees in JAX."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

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
    """Return the tensors in constants, in order, and a key of all but their values.

    The key has the memory layout of tensors, and says which places hold one and the same tensor.
    """
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


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of the fields of a class table or another dataclass of tensors; none of another class."""
    if kind not in _FIELD_NAMES:
        _FIELD_NAMES[kind] = tuple(field.name for field in fields(kind)) if is_dataclass(kind) else ()
    return _FIELD_NAMES[kind]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
