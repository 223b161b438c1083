"""Classes of very unequal size."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.dealing import shuffled_classes
from fedloom.data.skews.skew import Skew, skew
from fedloom.data.views import Indices


@skew("long-tail")
class LongTail(Skew):
    """Exponential long tail over all clients, before the partition; the test set stays as it is.

    Class j of 0 .. C-1 keeps n_j = floor(n_max (1 / rho)^(j / (C - 1))) random training samples, n_max = n / C, or all
    it has if it has fewer. Cao et al. 2019 (arXiv 1906.07413), as in the released code of FedSKC and FedSC, where the
    config key is 1 / rho.

    Example:
        >>> tail_counts(50_000 / 10, 10, rho=100)
        array([5000, 2997, 1796, 1077,  645,  387,  232,  139,   83,   50])
    """

    rho: float = Field(
        ge=1,
        allow_inf_nan=False,
        description="Size of the largest class divided by the size of the smallest; 1 keeps all classes alike.",
        examples=[100],
    )

    def thin(self, train: Dataset, rows: Indices, rng: np.random.Generator) -> Indices:
        classes = train.num_classes
        if classes < 2:
            raise ConfigError("skew long-tail: needs 2 classes or more, the source has 1")
        counts = tail_counts(len(rows) / classes, classes, self.rho)
        if counts.min() < 1:
            raise ConfigError(
                f"skew long-tail: rho = {self.rho:g} leaves class {counts.argmin()} without a sample: n / C = "
                f"{len(rows) / classes:g}; lower rho"
            )
        members = shuffled_classes(train.y.numpy()[rows], classes, rng)
        return np.sort(
            rows[np.concatenate([class_rows[:count] for class_rows, count in zip(members, counts, strict=True)])]
        )


def tail_counts(largest: float, classes: int, rho: float) -> Indices:
    """Samples per class [C]: floor(largest (1 / rho)^(j / (C - 1)))."""
    return np.array([int(largest * (1 / rho) ** (j / (classes - 1))) for j in range(classes)], np.int64)
