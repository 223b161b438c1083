"""A partition: how the samples of a set are dealt to clients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fedloom.core.registry import Registry
from fedloom.data.views import Indices, Views

PARTITIONS: Registry[type[Partition]] = Registry("partition", home="fedloom.data.partitions")


@dataclass(frozen=True, slots=True)
class Dealt:
    """The result: training views and matching test views (same shares per class), and the number of draws that a
    rejection loop needed (1 = the first was accepted)."""

    train: Views
    test: Views
    draws: int = 1


class Partition(BaseModel):
    """Base of all partitions: its fields are its config keys, `deal` is pure in its arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def deal(self, train: Indices, test: Indices, clients: int, num_classes: int, rng: np.random.Generator) -> Dealt:
        """Deal samples with labels `train` [n] and `test` [n'] to `clients`.

        Every training sample goes to exactly one client. Raises `ConfigError` if it cannot be done.
        """
        raise TypeError(f"{type(self).__name__} defines no deal()")


def partition(name: str) -> Callable[[type[Partition]], type[Partition]]:
    """Class decorator: register a partition under `name`."""
    return PARTITIONS.register(name)


def deal_by_shares(labels: Indices, shares: NDArray[np.float64], rng: np.random.Generator) -> Views:
    """Cut every class, shuffled, at the cumulative `shares` [N, C] (columns sum to 1).

    Client k gets the samples between floor(cumulative share before k * n_c) and floor(the one after * n_c) of each
    class c. Complete and disjoint; order within a client is by class.
    """
    clients, num_classes = shares.shape
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = (np.cumsum(shares[:, label])[:-1] * len(members)).astype(np.int64)
        for client, part in enumerate(np.split(members, cuts)):
            parts[client].append(part)
    return Views.of([np.concatenate(part) for part in parts])
