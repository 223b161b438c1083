"""Label skew by Dirichlet draws, with FedMA's balance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.balanced import balanced_cut
from fedloom.data.partitions.dealing import Shares, deal_by_counts, deal_by_shares
from fedloom.data.partitions.partition import Dealt, Partition, partition, require_enough
from fedloom.data.views import Indices


@partition("dirichlet-fedma")
class DirichletFedMA(Partition):
    """Dirichlet shares per class, none for clients that hold n / N samples already; redrawn until all hold enough.

    Wang et al. 2020 (FedMA, arXiv 2002.06440); what FedSKC's and FedSC's papers refer to, and, with `min_test: 10`,
    Fed-CO2's label skew. Sizes are more equal than those of `dirichlet`. Fed-CO2 with 300 clients or more: its
    minimum of 10 accepts hardly any draw; use `min_samples: 1, min_test: 1`.

    Example:
        >>> data = labels_only([0, 1, 2, 3] * 50)
        >>> bool(DirichletFedMA(alpha=0.5).deal(data, data, 5, rng).train.sizes.min() >= 10)
        True
    """

    alpha: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="Concentration of the Dirichlet distribution; small values mean strong label skew.",
        examples=[0.5],
    )
    min_samples: int = Field(
        10,
        ge=0,
        description="Smallest number of training samples of a client; the draw is repeated until every client has "
        "as many.",
    )
    min_test: int = Field(
        0,
        ge=0,
        description="Smallest number of test samples of a client; the draw is repeated until every client has as many.",
    )
    max_draws: int = Field(
        1000,
        ge=1,
        description="Largest number of draws before the partition is refused.",
    )

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        require_enough("dirichlet-fedma", clients, self.min_samples, len(train))
        require_enough("dirichlet-fedma", clients, self.min_test, len(test), "test samples")
        labels, test_labels, classes = train.y.numpy(), test.y.numpy(), train.num_classes
        test_counts = np.bincount(test_labels, minlength=classes)

        def enough(shares: Shares, sizes: Indices) -> NDArray[np.bool_]:
            is_accepted: NDArray[np.bool_] = sizes.sum(2).min(1) >= self.min_samples
            if self.min_test:
                edges = (np.cumsum(shares, axis=1) * test_counts).astype(np.int64)
                edges[:, -1] = test_counts
                is_accepted &= np.diff(edges, axis=1, prepend=0).sum(2).min(1) >= self.min_test
            return is_accepted

        counts = np.bincount(labels, minlength=classes)
        cut = balanced_cut(counts, clients, self.alpha, enough, self.max_draws, rng)
        if cut is None:
            raise ConfigError(
                f"partition dirichlet-fedma: none of {self.max_draws} draws with alpha {self.alpha} gave each of "
                f"{clients} clients {self.min_samples} samples and {self.min_test} test samples; raise alpha, or lower "
                "clients, min_samples or min_test"
            )
        return Dealt(deal_by_counts(labels, cut.sizes, rng), deal_by_shares(test_labels, cut.shares, rng), cut.draws)
