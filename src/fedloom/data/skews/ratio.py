"""Clients that use only part of their data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.client_splits import hold_out
from fedloom.data.scenario import Scenario
from fedloom.data.skews.skew import Skew, skew


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
