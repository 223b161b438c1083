"""A fixed number of classes per client, in uneven shares."""

from __future__ import annotations

import math

import numpy as np
from pydantic import Field, model_validator

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.classes import choose_holders, require_per_class
from fedloom.data.partitions.dealing import Shares, deal_by_counts
from fedloom.data.partitions.partition import Dealt, Partition, partition


@partition("pathological")
class Pathological(Partition):
    """Each client holds a few classes, of each a share in proportion to a draw from U(low, high).

    Fed-CO2's label skew (CIFAR-10 2, CIFAR-100 10 classes per client) and the released code of FedSSA, after Shamsian
    et al. 2021 (pFedHN). Every class has k = classes_per_client N / C holders (a whole number), chosen as in
    `classes`; each draws q ~ U(low, high), its share is q / sum of the k draws, and it gets floor(n_c share) samples
    of the class, of the training and of the test set alike. What the rounding leaves, up to k - 1 samples of a class,
    goes to nobody.

    Example:
        >>> data = labels_only(list(range(10)) * 100)
        >>> dealt = Pathological(classes_per_client=2).deal(data, data, 20, rng)
        >>> (dealt.train.class_counts(data.y.numpy(), 10) > 0).sum(0)
        array([4, 4, 4, 4, 4, 4, 4, 4, 4, 4])
    """

    classes_per_client: int = Field(
        ge=1,
        description="Number of classes that each client holds.",
        examples=[2],
    )
    low: float = Field(
        0.4,
        gt=0,
        allow_inf_nan=False,
        description="Lower end of the uniform draw that decides a client's share of a class.",
    )
    high: float = Field(
        0.6,
        gt=0,
        allow_inf_nan=False,
        description="Upper end of the uniform draw that decides a client's share of a class.",
    )

    @model_validator(mode="after")
    def _ordered(self) -> Pathological:
        if self.low > self.high:
            raise ConfigError(f"partition pathological: low = {self.low} is above high = {self.high}")
        return self

    def deal(self, train: Dataset, test: Dataset, clients: int, rng: np.random.Generator) -> Dealt:
        labels, test_labels, classes = train.y.numpy(), test.y.numpy(), train.num_classes
        holders = choose_holders("pathological", self.classes_per_client, clients, classes, rng)
        available, test_available = (np.bincount(y, minlength=classes) for y in (labels, test_labels))
        holders_per_class = holders.shape[1]
        # the smallest share that can be drawn must still be a sample, whatever the seed
        require_per_class(
            "pathological", available, holders_per_class, math.ceil(1 + (holders_per_class - 1) * self.high / self.low)
        )
        counts, test_counts = (np.zeros((clients, classes), np.int64) for _ in range(2))
        for label, class_holders in enumerate(holders):
            draws: Shares = rng.uniform(self.low, self.high, (holders_per_class,))
            shares: Shares = draws / draws.sum()
            counts[class_holders, label] = np.floor(available[label] * shares)
            test_counts[class_holders, label] = np.floor(test_available[label] * shares)
        return Dealt(deal_by_counts(labels, counts, rng), deal_by_counts(test_labels, test_counts, rng))
