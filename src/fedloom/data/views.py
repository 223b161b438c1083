"""Index lists of any number of clients in two flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Views:
    """Client k holds the samples `order[offsets[k] : offsets[k + 1]]`; `len(views)` clients.

    A view is a slice: a million clients cost two arrays, and one client's view costs nothing.
    """

    order: Indices
    offsets: Indices

    @staticmethod
    def from_lists(lists: Sequence[Indices]) -> Views:
        """Build views from one index array per client."""
        sizes = np.fromiter((len(part) for part in lists), dtype=np.int64, count=len(lists))
        order = np.concatenate(lists).astype(np.int64) if lists else np.zeros(0, np.int64)
        return Views(order, starts(sizes))

    @staticmethod
    def from_owners(owner: Indices, clients: int) -> Views:
        """Build views from the client of each sample, owner [n] in -1 .. clients-1; -1 leaves a sample out."""
        sizes = np.bincount(owner[owner >= 0], minlength=clients)
        order = np.argsort(owner, kind="stable")[len(owner) - int(sizes.sum()) :]
        return Views(order, starts(sizes))

    @staticmethod
    def split_evenly(order: Indices, clients: int) -> Views:
        """Cut `order` [m] into contiguous pieces whose sizes differ by at most one, the larger ones first."""
        return Views(order, starts(even_sizes(len(order), clients)))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Indices:
        """Return the sample indices [n_k] of one client, not copied."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def tensor(self, client: int) -> Tensor:
        """Return the sample indices [n_k] of one client as an int64 tensor that shares their memory."""
        return torch.from_numpy(self[client])

    def __repr__(self) -> str:
        return f"Views({len(self)} clients, {len(self.order)} samples)"

    @property
    def sizes(self) -> Indices:
        """Samples per client [N]."""
        return np.diff(self.offsets)

    def holders(self) -> Indices:
        """Return the client of each entry of `order` [m]."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def owner_of(self, samples: int) -> Indices:
        """Return the client of each of `samples` samples [n]: -1 if nobody holds it, one client if several do."""
        owner = np.full(samples, -1, np.int64)
        owner[self.order] = self.holders()
        return owner

    def renumber(self, rows: Indices) -> Views:
        """Return the views with sample i replaced by `rows[i]`; rows [n] int64."""
        return Views(rows[self.order], self.offsets)

    def of_clients(self, clients: Indices) -> Views:
        """Return the views of these clients alone, in this order, which is ascending; clients [m] int64."""
        return Views(self.order[np.isin(self.holders(), clients)], starts(self.sizes[clients]))

    def together(self) -> Views:
        """Return the views of one client that holds all samples, in the order of the clients."""
        return Views(self.order, np.array([0, len(self.order)], np.int64))

    def class_counts(self, labels: Indices, num_classes: int, first: int | None = None) -> Indices:
        """Count samples per client and class [N, C], int64.

        Args:
            labels: labels of the set that the views refer to [n], int64.
            num_classes: C.
            first: count only the first clients, at their cost alone; None counts all.
        """
        clients = len(self) if first is None else min(first, len(self))
        owner = np.repeat(np.arange(clients), self.sizes[:clients])
        held = labels[self.order[: self.offsets[clients]]]
        return np.bincount(owner * num_classes + held, minlength=clients * num_classes).reshape(clients, num_classes)


def starts(sizes: Indices) -> Indices:
    """Return the offsets [N + 1] of pieces of these sizes [N]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def evenly_spaced(indices: Indices, most: int) -> Indices:
    """Return at most `most` entries of an array [n], from its first to its last in equal steps; all if there are fewer.

    Example:
        >>> evenly_spaced(np.array([3, 5, 8, 9, 12]), 3).tolist()
        [3, 8, 12]
    """
    return indices[np.linspace(0, max(0, len(indices) - 1), min(len(indices), most)).astype(np.int64)]


def even_sizes(total: int, parts: int) -> Indices:
    """Split `total` into `parts` whole numbers that differ by at most one, the larger first."""
    return total // parts + (np.arange(parts) < total % parts).astype(np.int64)
