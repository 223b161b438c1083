"""Who holds what: index lists for any number of clients in two flat arrays."""

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
    def of(lists: Sequence[Indices]) -> Views:
        """Views from one index array per client."""
        sizes = np.fromiter((len(part) for part in lists), dtype=np.int64, count=len(lists))
        order = np.concatenate(lists).astype(np.int64) if lists else np.zeros(0, np.int64)
        return Views(order, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Indices:
        """Sample indices [n_k] of one client, not copied."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def tensor(self, client: int) -> Tensor:
        """The same as an int64 tensor that shares the memory."""
        return torch.from_numpy(self[client])

    @property
    def sizes(self) -> Indices:
        """Samples per client [N]."""
        return np.diff(self.offsets)

    def class_counts(self, labels: Indices, num_classes: int) -> Indices:
        """Samples per client and class [N, C]."""
        owner = np.repeat(np.arange(len(self)), self.sizes)
        flat = np.bincount(owner * num_classes + labels[self.order], minlength=len(self) * num_classes)
        return flat.reshape(len(self), num_classes)
