"""Clients that use part of their data, and classes with a long tail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.partition import shuffled_classes
from fedloom.data.scenario import Scenario
from fedloom.data.skews.skew import Skew, skew
from fedloom.data.views import Indices, hold_out


@skew("ratio")
class Ratio(Skew):
    """Data ratio: each client trains on a random part of its training samples; validation and test stay.

    Fed-CO2's Fig. 6 is base 743.8 and ratio 0.2, 0.4, 0.6, 1 or 2, over clients that hold 1,487 images or more. At one
    seed, smaller ratios keep a subset of larger ones.

        skews: [{name: ratio, ratio: 0.4, base: 743.8}]
    """

    ratio: float | tuple[float, ...] = Field(
        description="Share of the training samples that a client keeps, above 0: one number, or one per client. It "
        "is at most 1, unless `base` is set.",
        examples=[0.4],
    )
    base: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Number of samples that `ratio` is a share of: client k keeps floor(ratio base) samples. Null "
        "takes the client's own number.",
        examples=[743.8],
    )

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        ratios, sizes = per_client("ratio", self.ratio, scenario.clients), scenario.train.sizes
        if not (ratios > 0).all() or (self.base is None and (ratios > 1).any()):
            raise ConfigError(f"skew ratio: ratio = {self.ratio}; need above 0, and up to 1 unless base is given")
        kept_counts = np.floor(ratios * (sizes if self.base is None else self.base))
        too_small = np.flatnonzero(kept_counts > sizes)
        if len(too_small):
            raise ConfigError(
                f"skew ratio: client {too_small[0]} is to keep {kept_counts[too_small[0]]:.0f} training samples and "
                f"has {sizes[too_small[0]]}; lower ratio or base"
            )
        # half a sample more, so that the floor of the product cannot fall short of the whole number
        shares = np.divide(kept_counts + 0.5, sizes, out=np.zeros(len(sizes)), where=sizes > 0)
        return replace(scenario, train=hold_out(scenario.train, shares, rng)[1])


def per_client(key: str, value: float | tuple[float, ...], clients: int) -> np.ndarray:
    """Return one number per client [N].

    Args:
        key: key of the skew, for the message.
        value: a number for all clients, or one for each. Raises `ConfigError` for a list of another length.
        clients: N.
    """
    values = np.full(clients, value) if isinstance(value, float) else np.array(value)
    if len(values) != clients:
        raise ConfigError(f"skew: {key} lists {len(values)} numbers for {clients} clients; need one, or one per client")
    return values


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
