"""Wrong labels on purpose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.attacks.attack import Attack, attack
from fedloom.data.scenario import Scenario


@attack("label-flip")
class LabelFlip(Attack):
    """Label flip: bad clients train on other labels than the true ones.

    Without `source` and `target`, every class c becomes C - 1 - c (Fang et al., USENIX Security 2020, arXiv
    1911.11815). With both, `source` becomes `target`, and all else stays (Tolpegin et al., ESORICS 2020, arXiv
    2007.08432). Success is the share of test samples of flipped classes that are predicted as what they were flipped
    to.

        attack: {name: label-flip, share: 0.2, source: 5, target: 3}
    """

    source: int | None = Field(
        None,
        ge=0,
        description="Number of the class that becomes `target`; null (with `target` null) flips every class c to C "
        "- 1 - c.",
        examples=[5],
    )
    target: int | None = Field(
        None,
        ge=0,
        description="Number of the class that samples of `source` get as their label; it is set together with "
        "`source`.",
        examples=[3],
    )

    def poison(self, scenario: Scenario) -> Scenario:
        labels = scenario.train_set.y.numpy().copy()
        bad = np.isin(scenario.train.holders(), scenario.bad)
        bad_rows, honest_rows = scenario.train.order[bad], scenario.train.order[~bad]
        if np.isin(bad_rows, np.concatenate([honest_rows, scenario.val.order])).any():
            raise ConfigError(
                "scenario.attack label-flip: some samples of bad clients are others' or validation samples too, and "
                "would be flipped there; choose a partition whose clients share no samples"
            )
        targets = self.target_classes(scenario.num_classes).numpy()[labels[bad_rows]]
        labels[bad_rows] = np.where(targets >= 0, targets, labels[bad_rows])
        return replace(scenario, train_set=replace(scenario.train_set, y=torch.from_numpy(labels)))

    def target_classes(self, num_classes: int) -> Tensor:
        if (self.source is None) != (self.target is None):
            raise ConfigError("scenario.attack label-flip: source and target go together; give both, or neither")
        if self.source is None or self.target is None:
            mirrored = torch.arange(num_classes).flip(0)
            return torch.where(mirrored == torch.arange(num_classes), -1, mirrored)
        if self.source == self.target or max(self.source, self.target) >= num_classes:
            raise ConfigError(
                f"scenario.attack label-flip: source = {self.source}, target = {self.target}: need two different "
                f"classes of 0 .. {num_classes - 1}"
            )
        targets = torch.full((num_classes,), -1)
        targets[self.source] = self.target
        return targets
