"""Stack a round's constants of several clients: equal leaves stay single, the others get a dimension for clients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from fedloom.engine.leaves import Leaf, from_leaves, leaves_of, structure_of, to_device
from fedloom.methods.contract.phases import Consts


@dataclass(frozen=True, slots=True)
class Stacked:
    """Constants of K clients: `shared` leaves (None where clients differ), `stacked` ones [K, ...], and structure."""

    shape: Hashable
    shared: list[Leaf | None]
    stacked: list[Tensor]

    @staticmethod
    def of(clients: Sequence[Consts]) -> Stacked:
        """Stack the constants of clients, which must have the same `structure_of`."""
        shape, *_ = (structure_of(consts) for consts in clients[:1])
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
        """Return the stacked leaves of the first clients, without a copy."""
        return [leaf[:clients] for leaf in self.stacked]

    def on(self, device: torch.device) -> Stacked:
        """Return the constants with all tensors on a device."""
        return Stacked(self.shape, to_device(self.shared, device), to_device(self.stacked, device))

    def of_one(self, private: Sequence[Tensor]) -> Consts:
        """Return one client's constants: the shared leaves, and its `private` ones where clients differ."""
        private_leaves = iter(private)
        leaves = iter([next(private_leaves) if leaf is None else leaf for leaf in self.shared])
        return cast(Consts, from_leaves(self.shape, leaves))


def _same(a: Leaf, b: Leaf) -> bool:
    if a is b:
        return True
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    where = a.data_ptr() == b.data_ptr() and a.stride() == b.stride()
    return where or torch.equal(a, b)
