"""Clients that differ in nothing, or in size alone."""

import numpy as np
from pydantic import Field

from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import Alpha, Dealt, MaxDraws, MinSamples, Partition, cut, partition
from fedloom.data.views import Views, starts


@partition("iid")
class IID(Partition):
    """No skew: samples shuffled and dealt in equal parts (sizes differ by at most one).

    Example:
        >>> data = labels_only([0, 1, 2] * 4)
        >>> IID().deal(data, data, 5, rng).train.sizes
        array([3, 3, 2, 2, 2])
    """

    takes_multi = True

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        return Dealt(
            Views.split_evenly(rng.permutation(len(train)), clients),
            Views.split_evenly(rng.permutation(len(test)), clients),
        )


@partition("quantity")
class Quantity(Partition):
    """Quantity skew: sizes drawn from Dirichlet(alpha, ..., alpha), labels as they come (no label skew).

    Li et al. 2022 (NIID-Bench, arXiv 2102.02079). Test views take the same shares.

    Example:
        >>> data = labels_only([0, 1] * 500)
        >>> sizes = Quantity(alpha=0.5).deal(data, data, 5, rng).train.sizes
        >>> int(sizes.sum()), bool(sizes.min() >= 10)
        (1000, True)
    """

    takes_multi = True
    alpha: Alpha = Field(
        description="Concentration of the Dirichlet distribution over clients; small values mean very unequal sizes.",
        examples=[0.5],
    )
    min_samples: MinSamples = 10
    max_draws: MaxDraws = 1000

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        self.require_enough(clients, self.min_samples, len(train))
        # Samples are shuffled only for the draw that is kept: a redraw costs no permutation of the data.
        for draw in range(1, self.max_draws + 1):
            shares = rng.dirichlet(np.full(clients, self.alpha))
            sizes = cut(shares, len(train))
            if sizes.min() >= self.min_samples:
                return Dealt(
                    Views(rng.permutation(len(train)), starts(sizes)),
                    Views(rng.permutation(len(test)), starts(cut(shares, len(test)))),
                    draw,
                )
        outcome = f"{clients} clients {self.min_samples} samples; raise alpha, or lower clients or min_samples"
        raise self.refusal(f"none of {self.max_draws} draws with alpha {self.alpha} gave each of {outcome}")
