"""A round's constants of several clients as one: what they have in common stays single, what differs is stacked."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.methods.phases import Consts

Leaf: TypeAlias = Tensor | float


@dataclass(frozen=True, slots=True)
class Stacked:
    """`shared` leaves as they are (None where clients differ), `stacked` leaves [K, ...], and the shape of it all."""

    shape: Hashable
    shared: list[Leaf | None]
    stacked: list[Tensor]

    @staticmethod
    def of(clients: Sequence[Consts]) -> Stacked:
        """One for clients whose constants have the same `shape_of`."""
        shape, *_ = (shape_of(consts) for consts in clients[:1])
        shared: list[Leaf | None] = []
        stacked: list[Tensor] = []
        for leaves in zip(*(leaves_of(consts) for consts in clients), strict=True):
            if all(_same(leaf, leaves[0]) for leaf in leaves):
                shared.append(leaves[0])
            else:
                shared.append(None)
                stacked.append(torch.stack([torch.as_tensor(leaf) for leaf in leaves]))
        return Stacked(shape, shared, stacked)

    def first(self, clients: int) -> list[Tensor]:
        """The stacked leaves of the first clients, without a copy."""
        return [leaf[:clients] for leaf in self.stacked]

    def tensors(self) -> list[Tensor]:
        """The shared leaves that are tensors."""
        return [leaf for leaf in self.shared if isinstance(leaf, Tensor)]

    def kinds(self) -> tuple[float | str, ...]:
        """What a recording of a step depends on, leaf by leaf: a number's value, or where a tensor comes from."""
        return tuple("own" if leaf is None else "shared" if isinstance(leaf, Tensor) else leaf for leaf in self.shared)

    def with_tensors(self, given: Iterator[Tensor]) -> Stacked:
        """The same with the next tensors of `given` in place of the shared ones."""
        shared = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.shared]
        return Stacked(self.shape, shared, self.stacked)

    def on(self, device: torch.device) -> Stacked:
        """The same with all tensors on a device."""
        return Stacked(self.shape, placed(self.shared, device), placed(self.stacked, device))

    def of_one(self, own: Sequence[Tensor]) -> Consts:
        """One client's constants: the shared leaves, and its `own` in place of the stacked ones."""
        own_leaves = iter(own)
        leaves = iter([next(own_leaves) if leaf is None else leaf for leaf in self.shared])
        return cast(Consts, rebuilt(self.shape, leaves))


def shape_of(value: Any) -> Hashable:
    """Everything about constants but the values of tensors and numbers; clients that share it can be stacked."""
    if isinstance(value, Tensor):
        return ("tensor", tuple(value.shape), value.dtype)
    if isinstance(value, ClassTable):
        return ("table", shape_of(value.values), shape_of(value.held))
    if isinstance(value, dict):
        return ("dict", tuple((name, shape_of(child)) for name, child in value.items()))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(shape_of(child) for child in value))
    return ("number",) if _is_number(value) else ("value", value)


def leaves_of(value: Any) -> list[Leaf]:
    """Tensors and numbers in constants, in order."""
    if isinstance(value, ClassTable):
        return [value.values, value.held]
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
    if kind == "table":
        return ClassTable(next(leaves), next(leaves))
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same(a: Leaf, b: Leaf) -> bool:
    if a is b:
        return True
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    where = a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
    return where or torch.equal(a, b)
