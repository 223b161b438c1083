"""Wrong labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from pydantic import Field

from fedloom.core.errors import ConfigError
from fedloom.data.client_splits import hold_out
from fedloom.data.scenario import Scenario
from fedloom.data.skews.ratio import per_client
from fedloom.data.skews.skew import Skew, skew


@skew("label-noise")
class LabelNoise(Skew):
    """Symmetric label noise: floor(share n_k) random training samples of each client get another class, all alike.

    Validation and test labels stay true. After the partition, so that label skew is that of the true labels; class
    counts show the labels that clients see.

        skews: [{name: label-noise, share: 0.2}]
    """

    share: float | tuple[float, ...] = Field(
        description="Share of a client's training samples that get a wrong label, from 0 to 1: one number, or one "
        "per client.",
        examples=[0.2],
    )

    def apply(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        shares, classes = per_client("share", self.share, scenario.clients), scenario.num_classes
        if not ((shares >= 0) & (shares <= 1)).all():
            raise ConfigError(f"skew label-noise: share = {self.share}; need numbers in [0, 1]")
        if classes < 2:
            raise ConfigError("skew label-noise: needs 2 classes or more, the source has 1")
        wrong = hold_out(scenario.train, shares, rng)[1].order
        labels = scenario.train_set.y.numpy().copy()
        labels[wrong] = (labels[wrong] + rng.integers(1, classes, len(wrong))) % classes
        return replace(scenario, train_set=replace(scenario.train_set, y=torch.from_numpy(labels)))
