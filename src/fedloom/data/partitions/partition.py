"""The base of partitions, which deal the samples of a source to clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict, field_validator

from fedloom.core.errors import ConfigError
from fedloom.core.files import expand_if_path
from fedloom.core.registry import Registry
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import TestRows
from fedloom.data.views import Views

PARTITIONS: Registry[type[Partition]] = Registry("partition", home="fedloom.data.partitions")


@dataclass(frozen=True, slots=True)
class Dealt:
    """The views of a partition, and how many draws it took.

    Attributes:
        train: views per client into the training set.
        test: views per client into the test set.
        draws: how many draws the rejection loops needed.
        accepted: how many of them were kept (one per loop).
        val: only from a partition that fixes the validation views too.
        test_rows: what the test views of such a partition count in: the official test set, or the clients' own pool
            (see `fedloom.data.assemble.OwnSplit`).
        notes: sentences on samples that are in no view though a reader would expect them there.
    """

    train: Views
    test: Views
    draws: int = 1
    accepted: int = 1
    val: Views | None = None
    test_rows: TestRows = "official"
    notes: tuple[str, ...] = ()


class Partition(BaseModel):
    """Base of all partitions: its fields are its config keys, `deal` is pure in its arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    takes_thinned: ClassVar[bool] = True
    """Whether it can deal a training set that a skew has thinned."""

    _home = field_validator("*")(expand_if_path)

    def count_clients(self, load: Callable[[], Dataset]) -> int | None:
        """Return the number of clients that the data decide; None if the config does.

        Args:
            load: reads the training set.
        """
        return None

    def without_domain(self, domain: int, clients: int) -> tuple[Partition, int]:
        """Return the partition of the other domains, and its number of clients.

        Args:
            domain: index of the domain that is left out.
            clients: number of clients with all domains.
        """
        return self, clients

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        """Deal samples to clients. No training sample goes to two clients.

        Args:
            train: the training set. Only labels, classes and domains are to be looked at: where a skew has thinned the
                set, `x` is [n, 0].
            test: the official test set.
            clients: number of clients N.
            rng: draws everything that is random.

        Raises `ConfigError` if it cannot be done.
        """
        raise TypeError(f"{type(self).__name__} defines no deal()")


def partition(name: str) -> Callable[[type[Partition]], type[Partition]]:
    """Return a class decorator that registers a partition as `name`."""
    return PARTITIONS.register(name)


def labels_only(
    labels: ArrayLike,
    classes: Sequence[str] | None = None,
    domain: ArrayLike | None = None,
    domains: Sequence[str] = (),
) -> Dataset:
    """Build a `Dataset` without pixels, x [n, 0], for a partition.

    Args:
        labels: [n], whole numbers from 0.
        classes: names of the classes; None takes "0" .. the largest label.
        domain: origin of each sample [n], an index into `domains`; None if they have one origin.
        domains: names of the origins.
    """
    y = torch.from_numpy(np.array(labels, dtype=np.int64))
    names = (
        tuple(classes)
        if classes is not None
        else tuple(str(label) for label in range(int(y.max()) + 1 if len(y) else 0))
    )
    domain_ids = None if domain is None else torch.from_numpy(np.array(domain, dtype=np.int64))
    return Dataset(torch.empty(len(y), 0), y, names, domain=domain_ids, domains=tuple(domains))


def require_clients(name: str, clients: int, needed: int, reason: str) -> None:
    """Raise `ConfigError` unless there are exactly `needed` clients; reason: words for the message."""
    if clients != needed:
        raise ConfigError(f"scenario.clients = {clients}: partition {name} {reason}; need clients={needed}")


def require_enough(name: str, clients: int, minimum: int, samples: int, noun: str = "samples") -> None:
    """Raise `ConfigError` if `samples` cannot give each of `clients` its `minimum`."""
    if clients * minimum > samples:
        raise ConfigError(
            f"partition {name}: {clients} clients with at least {minimum} {noun} each need {clients * minimum} {noun}, "
            f"there are {samples}; lower clients or the minimum"
        )
