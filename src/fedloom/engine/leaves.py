"""The tensors and numbers inside a round's constants, and constants rebuilt around others."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

Leaf: TypeAlias = Tensor | float


def shape_of(value: Any) -> Hashable:
    """Everything about constants but the values of tensors and numbers; clients that share it can be stacked."""
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), value.dtype)
    if _is_value(value):
        return ("value", type(value), tuple(shape_of(getattr(value, field.name)) for field in fields(value)))
    if isinstance(value, dict):
        return ("dict", tuple((name, shape_of(child)) for name, child in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(shape_of(child) for child in value))
    return ("number",) if _is_number(value) else ("plain", value)


def leaves_of(value: Any) -> list[Leaf]:
    """Tensors and numbers in constants, in order."""
    if _is_value(value):
        return [leaf for field in fields(value) for leaf in leaves_of(getattr(value, field.name))]
    if isinstance(value, dict):
        return [leaf for child in value.values() for leaf in leaves_of(child)]
    if isinstance(value, list | tuple):
        return [leaf for child in value for leaf in leaves_of(child)]
    return [value] if isinstance(value, Tensor) or _is_number(value) else []


def rebuilt(shape: Any, leaves: Iterator[Any]) -> Any:
    """The constants of which `shape_of` is `shape`, with these leaves."""
    kind, *rest = shape
    if kind in ("tensor", "number"):
        return next(leaves)
    if kind == "value":
        return rest[0](*(rebuilt(child, leaves) for child in rest[1]))
    if kind == "dict":
        return {name: rebuilt(child, leaves) for name, child in rest[0]}
    if kind in ("list", "tuple"):
        children = [rebuilt(child, leaves) for child in rest[0]]
        return children if kind == "list" else tuple(children)
    return rest[0]


def placed(value: Any, device: torch.device) -> Any:
    """Constants with their tensors on a device; themselves if they are there."""
    leaves = leaves_of(value)
    if all(leaf.device == device for leaf in leaves if isinstance(leaf, Tensor)):
        return value
    moved = (leaf.to(device) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
    return rebuilt(shape_of(value), moved)


def _is_value(value: Any) -> bool:
    """Whether it is a class table, or another dataclass of tensors."""
    return is_dataclass(value) and not isinstance(value, type)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
