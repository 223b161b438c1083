"""The base of attacks, and the one that changes labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.registry import Registry
from fedloom.data.scenario import Scenario

ATTACKS: Registry[type[Attack]] = Registry("attack", home="fedloom.data.attacks")


class Attack(BaseModel):
    """Base of all attacks: its fields are its config keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    kind: ClassVar[str] = ""
    """The name under which it is registered."""
    min_bad: ClassVar[int] = 1
    """The smallest number of bad clients that it needs."""

    share: float = Field(
        0.2,
        description="Share of all clients that misbehave, at least 0 and below 0.5; it is rounded down to whole "
        "clients.",
        examples=[0.2],
    )

    @field_validator("share")
    @classmethod
    def _a_minority(cls, share: float) -> float:
        if not 0 <= share < 0.5:
            raise ConfigError(
                f"scenario.attack.share = {short_repr(share)}: need a number in [0, 0.5); from half of the clients on, "
                "those that misbehave are the majority, and nobody can tell who is right"
            )
        return share

    def add_to(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        """Draw the bad clients uniformly and return the scenario with their training data changed.

        Raises `ConfigError` if the share is too few clients for this attack.
        """
        clients = scenario.clients
        count = math.floor(self.share * clients + 1e-9)
        if self.share and count < self.min_bad:
            raise ConfigError(
                f"scenario.attack.share = {self.share:g}: of {clients} clients that is {count or 'nobody'}, and "
                f"{self.kind} needs {self.min_bad} or more; raise it to {self.min_bad / clients:g}, or leave attack out"
            )
        bad = tuple(int(k) for k in np.sort(rng.choice(clients, count, replace=False)))
        return self.poison(replace(scenario, attack=self, bad=bad))

    def poison(self, scenario: Scenario) -> Scenario:
        """Return the scenario with the training data of the clients `scenario.bad` changed."""
        return scenario

    def why_idle(self, participants: int) -> str | None:
        """Return why the attack has no effect in rounds with so many participants, or None if it has one."""
        return None

    def target_classes(self, num_classes: int) -> Tensor | None:
        """Return the class [C] int64 that samples of each class shall be mistaken for, -1 for none.

        None if the attack has no such target, so that one run cannot show its success.
        """
        return None


def attack(name: str) -> Callable[[type[Attack]], type[Attack]]:
    """Return a class decorator that registers an attack as `name`."""

    def register_class(attack_class: type[Attack]) -> type[Attack]:
        attack_class.kind = name
        return ATTACKS.register(name)(attack_class)

    return register_class


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
