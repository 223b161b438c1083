"""Label skew by Dirichlet draws."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.dealing import cut, shuffled_classes
from fedloom.data.partitions.partition import Dealt, Partition, partition, require_enough
from fedloom.data.views import Views


@partition("dirichlet")
class Dirichlet(Partition):
    """Label skew: for each class, shares over clients drawn from Dirichlet(alpha, ..., alpha).

    Hsu et al. 2019, arXiv 1909.06335; the redraw until every client has enough samples is Yurochkin et al. 2019. The
    number of draws is reported, because redrawing conditions the skew.
    Test views take the same shares of the test set, so that a client is tested on its own mix.

    Example:
        >>> data = labels_only([0, 1] * 50)
        >>> bool(Dirichlet(alpha=0.5, min_samples=5).deal(data, data, 4, rng).train.sizes.min() >= 5)
        True
    """

    alpha: float = Field(
        gt=0,
        allow_inf_nan=False,
        description="Concentration of the Dirichlet distribution. Small values mean strong skew (at 0.1 most "
        "clients see few classes), large values mean even shares.",
        examples=[0.1],
    )
    min_samples: int = Field(
        10,
        ge=0,
        description="Smallest number of training samples of a client; the draw is repeated until every client has "
        "as many. With 0 there is one plain draw, whose shares are independent between classes, as in FedDW.",
    )
    max_draws: int = Field(
        1000,
        ge=1,
        description="Largest number of draws before the partition is refused.",
    )

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        require_enough("dirichlet", clients, self.min_samples, len(train))
        class_rows, test_class_rows = (
            shuffled_classes(data.y.numpy(), train.num_classes, rng) for data in (train, test)
        )
        client_ids, concentration = np.arange(clients), np.full(clients, self.alpha)
        owner, test_owner = np.empty(len(train), np.int64), np.empty(len(test), np.int64)
        for draw in range(1, self.max_draws + 1):
            held_counts = np.zeros(clients, np.int64)
            for rows, test_rows in zip(class_rows, test_class_rows, strict=True):
                shares = rng.dirichlet(concentration)
                sizes = cut(shares, len(rows))
                owner[rows] = np.repeat(client_ids, sizes)
                test_owner[test_rows] = np.repeat(client_ids, cut(shares, len(test_rows)))
                held_counts += sizes
            if held_counts.min() >= self.min_samples:
                return Dealt(Views.from_owners(owner, clients), Views.from_owners(test_owner, clients), draw)
        raise ConfigError(
            f"partition dirichlet: none of {self.max_draws} draws with alpha {self.alpha} gave each of {clients} "
            f"clients {self.min_samples} samples; raise alpha, or lower clients or min_samples"
        )
