"""No skew."""

from __future__ import annotations

import numpy as np

from fedloom.data.partitions.partition import Dealt, Partition, partition
from fedloom.data.views import Indices, Views


@partition("iid")
class IID(Partition):
    """No skew: samples shuffled and dealt in equal parts (sizes differ by at most one)."""

    def deal(self, train: Indices, test: Indices, clients: int, num_classes: int, rng: np.random.Generator) -> Dealt:
        return Dealt(
            Views.of(np.array_split(rng.permutation(len(train)), clients)),
            Views.of(np.array_split(rng.permutation(len(test)), clients)),
        )
