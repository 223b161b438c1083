"""Constants of a round as a structure and a list of leaves (tensors and numbers), and back, as pytrees in JAX."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

Leaf: TypeAlias = Tensor | float


def structure_of(value: Any) -> Hashable:
    """Return all of the constants but the values of tensors and numbers. Clients that share it can be stacked."""
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), value.dtype)
    if _is_dataclass(value):
        return ("dataclass", type(value), tuple(structure_of(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, dict):
        return ("dict", tuple((name, structure_of(child)) for name, child in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(structure_of(child) for child in value))
    return ("number",) if _is_number(value) else ("plain", value)


def leaves_of(value: Any) -> list[Leaf]:
    """Return the tensors and numbers in constants, in order."""
    if _is_dataclass(value):
        return [leaf for field in fields(value) for leaf in leaves_of(getattr(value, field.name))]
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in leaves_of(child)]
    if isinstance(value, list | tuple):
        return [leaf for child in value for leaf in leaves_of(child)]
    return [value] if isinstance(value, Tensor) or _is_number(value) else []


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
    if isinstance(value, dict) and not value:
        return value
    leaves = leaves_of(value)
    if all(leaf.device == device for leaf in leaves if isinstance(leaf, Tensor)):
        return value
    moved = (leaf.to(device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return from_leaves(structure_of(value), moved)


def _is_dataclass(value: Any) -> bool:
    """Whether `value` is a class table or another dataclass of tensors."""
    return is_dataclass(value) and not isinstance(value, type)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
