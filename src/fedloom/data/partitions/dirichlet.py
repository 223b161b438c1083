"""Label skew by Dirichlet draws."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.partitions.partition import Dealt, Partition, deal_by_shares, partition
from fedloom.data.views import Indices


@partition("dirichlet")
class Dirichlet(Partition):
    """Label skew: for each class, shares over clients drawn from Dirichlet(alpha, ..., alpha).

    Small `alpha` means strong skew (0.1: most clients see few classes), large means even. Hsu et al. 2019, arXiv
    1909.06335; the redraw until every client has `min_samples` training samples is Yurochkin et al. 2019. Redrawing
    is bounded by `max_draws`, and the number of draws is reported: it conditions the skew.
    Test views take the same shares of the test set, so that a client is tested on its own mix.
    """

    alpha: float = Field(gt=0, allow_inf_nan=False)
    min_samples: int = Field(10, ge=0)
    max_draws: int = Field(1000, ge=1)

    def deal(self, train: Indices, test: Indices, clients: int, num_classes: int, rng: np.random.Generator) -> Dealt:
        if clients * self.min_samples > len(train):
            raise ConfigError(
                f"partition dirichlet: {clients} clients with at least {self.min_samples} samples each need "
                f"{clients * self.min_samples} samples, there are {len(train)}; lower clients or min_samples"
            )
        counts = np.bincount(train, minlength=num_classes)
        for draw in range(1, self.max_draws + 1):
            shares = rng.dirichlet(np.full(clients, self.alpha), size=num_classes).T
            edges = np.concatenate([np.zeros((1, num_classes)), np.cumsum(shares, axis=0)])
            edges[-1] = 1.0
            if np.diff((edges * counts).astype(np.int64), axis=0).sum(1).min() >= self.min_samples:
                return Dealt(deal_by_shares(train, shares, rng), deal_by_shares(test, shares, rng), draw)
        raise ConfigError(
            f"partition dirichlet: none of {self.max_draws} draws with alpha {self.alpha} gave each of {clients} "
            f"clients {self.min_samples} samples; raise alpha, or lower clients or min_samples"
        )
