"""A scenario: a source dealt to clients, with training, validation and test views. No sample is copied."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import Partition
from fedloom.data.sources.source import Splits
from fedloom.data.views import Indices, Views


@dataclass(frozen=True, slots=True)
class Scenario:
    """Clients and their data.

    `train`, `val` and `test` are views per client: the first two into `train_set`, the last into `test_set`, matched to
    the client's label mix. `test_set` as a whole is the global test set. `draws`: how many draws the partition took.
    """

    name: str
    train_set: Dataset
    test_set: Dataset
    train: Views
    val: Views
    test: Views
    draws: int = 1

    @property
    def clients(self) -> int:
        """N."""
        return len(self.train)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.train_set.num_classes

    def digest(self) -> str:
        """Hash (16 hex digits) of all samples, labels and views."""
        digest = hashlib.sha256()
        for data in (self.train_set, self.test_set):
            digest.update(str((data.x.dtype, tuple(data.x.shape), data.classes)).encode())
            digest.update(data.x.contiguous().numpy().data)
            digest.update(data.y.contiguous().numpy().data)
        for views in (self.train, self.val, self.test):
            digest.update(np.ascontiguousarray(views.order).data)
            digest.update(np.ascontiguousarray(views.offsets).data)
        return digest.hexdigest()[:16]

    def class_counts(self) -> Indices:
        """Training samples per client and class [N, C]."""
        return self.train.class_counts(self.train_set.y.numpy(), self.num_classes)


def make_scenario(
    name: str, splits: Splits, partition: Partition, *, clients: int, val: float, streams: Streams
) -> Scenario:
    """Deal `splits` to `clients`; `val` is the share of each client's training samples held out for validation.

    Pure in the seed of `streams`. Raises `ConfigError` for more clients than samples or a share outside [0, 1).
    """
    labels, test_labels = splits.train.y.numpy(), splits.test.y.numpy()
    if not 1 <= clients <= len(labels):
        raise ConfigError(
            f"scenario.clients = {clients}: {name} has {len(labels)} training samples; need 1 to {len(labels)} clients"
        )
    if not 0 <= val < 1:
        raise ConfigError(f"scenario.val = {val}: the share held out for validation must be in [0, 1)")
    rng = streams.numpy("partition")
    dealt = partition.deal(labels, test_labels, clients, splits.train.num_classes, rng)
    train, held_out = _split(dealt.train, val, rng)
    return Scenario(name, splits.train, splits.test, train, held_out, dealt.test, dealt.draws)


def _split(views: Views, share: float, rng: np.random.Generator) -> tuple[Views, Views]:
    """Each view shuffled, then its first floor(share * n_k) samples held out, the rest kept."""
    kept, held = [], []
    for client in range(len(views)):
        shuffled = rng.permutation(views[client])
        cut = int(share * len(shuffled))
        held.append(shuffled[:cut])
        kept.append(shuffled[cut:])
    return Views.of(kept), Views.of(held)
