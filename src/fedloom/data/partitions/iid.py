"""No skew."""

from __future__ import annotations

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import Dealt, Partition, partition
from fedloom.data.views import Views


@partition("iid")
class IID(Partition):
    """No skew: samples shuffled and dealt in equal parts (sizes differ by at most one).

    Example:
        >>> data = labels_only([0, 1, 2] * 4)
        >>> IID().deal(data, data, 5, rng).train.sizes
        array([3, 3, 2, 2, 2])
    """

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        return Dealt(
            Views.split_evenly(rng.permutation(len(train)), clients),
            Views.split_evenly(rng.permutation(len(test)), clients),
        )
