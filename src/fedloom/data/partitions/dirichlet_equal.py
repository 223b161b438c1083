"""Dirichlet label skew with equal sizes: what FedSKC's and FedSC's released code really does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.balanced import balanced_cut
from fedloom.data.partitions.dealing import Shares, deal_alike, shuffled_classes
from fedloom.data.partitions.partition import Dealt, Partition, partition
from fedloom.data.views import Indices, Views

_GROUP = 10


@partition("dirichlet-equal")
class DirichletEqual(Partition):
    """All clients hold the same number of samples (+-1); their mixes are softer than the concentration says.

    As in the released code of FedSKC and FedSC: samples are shuffled and cut into groups of 10 clients; within a group
    shares are those of `dirichlet-fedma`, redrawn until the smallest client holds half the mean; then the lists of all
    clients are laid end to end, class by class within a client, and cut into K equal pieces. These cuts ignore the
    Dirichlet borders, so that a piece may hold the end of one client's list and the start of the next one's.
    Test views take each client's share of each class. Draws are counted over all groups.

    Example:
        >>> data = labels_only(list(range(10)) * 100)
        >>> DirichletEqual(alpha=0.2).deal(data, data, 20, rng).train.sizes.tolist() == [50] * 20
        True
    """

    alpha: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="Concentration of the Dirichlet distribution; small values mean strong label skew.",
        examples=[0.2],
    )
    max_draws: int = Field(
        100_000,
        ge=1,
        description="Largest number of draws of a group before the partition is refused.",
    )

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        labels = train.y.numpy()
        shuffled = rng.permutation(len(labels))
        first_clients = range(0, clients, _GROUP)
        ends = [first * len(labels) // clients for first in first_clients][1:]
        lists, draws = [], 0
        for first, group in zip(first_clients, np.split(shuffled, ends), strict=True):
            group_list, group_draws = self._lists(group, labels, train.num_classes, min(_GROUP, clients - first), rng)
            lists.append(group_list)
            draws += group_draws
        views = Views.split_evenly(np.concatenate(lists), clients)
        tests = deal_alike(views, labels, test.y.numpy(), train.num_classes, rng)
        return Dealt(views, tests, draws, len(lists))

    def _lists(
        self, group: Indices, labels: Indices, num_classes: int, clients: int, rng: np.random.Generator
    ) -> tuple[Indices, int]:
        """The lists of a group's clients end to end, and the number of draws."""
        minimum = len(group) // (2 * clients)

        def enough(shares: Shares, sizes: Indices) -> NDArray[np.bool_]:
            is_accepted: NDArray[np.bool_] = sizes.sum(2).min(1) >= minimum
            return is_accepted

        class_rows = shuffled_classes(labels[group], num_classes, rng)
        counts = np.array([len(rows) for rows in class_rows])
        cut = balanced_cut(counts, clients, self.alpha, enough, self.max_draws, rng)
        if cut is None:
            raise ConfigError(
                f"partition dirichlet-equal: none of {self.max_draws} draws with alpha {self.alpha} gave each of "
                f"{clients} clients of a group {minimum} samples, half the mean; raise alpha or max_draws"
            )
        owner = np.repeat(np.tile(np.arange(clients), num_classes), cut.sizes.T.reshape(-1))
        return group[np.concatenate(class_rows)[np.argsort(owner, kind="stable")]], cut.draws
