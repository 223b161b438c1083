"""An attack: which clients misbehave, and what they do to their data. Validation and test data stay clean."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np
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
    """The name it is registered under."""
    fewest: ClassVar[int] = 1
    """How many bad clients it needs."""

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

    def among(self, scenario: Scenario, rng: np.random.Generator) -> Scenario:
        """The scenario with this attack: bad clients drawn alike from all N, and their training data changed.

        Raises `ConfigError` for a share that is no client, or too few for this attack.
        """
        clients = scenario.clients
        count = math.floor(self.share * clients + 1e-9)
        if self.share and count < self.fewest:
            raise ConfigError(
                f"scenario.attack.share = {self.share:g}: of {clients} clients that is {count or 'nobody'}, and "
                f"{self.kind} needs {self.fewest} or more; raise it to {self.fewest / clients:g}, or leave attack out"
            )
        bad = tuple(int(k) for k in np.sort(rng.choice(clients, count, replace=False)))
        return self.poisoned(replace(scenario, attack=self, bad=bad))

    def poisoned(self, scenario: Scenario) -> Scenario:
        """The scenario with the training data of `scenario.bad` changed."""
        return scenario

    def idle(self, participants: int) -> str | None:
        """Why this attack does nothing in rounds of so many participants; None if it does something."""
        return None

    def aims(self, num_classes: int) -> Tensor | None:
        """The class that samples of each class are to be taken for [C], int64, -1 where none; None if the attack has no
        such aim, so that its success is not seen in one run."""
        return None


def attack(name: str) -> Callable[[type[Attack]], type[Attack]]:
    """Class decorator: register an attack under `name`."""

    def enter(made: type[Attack]) -> type[Attack]:
        made.kind = name
        return ATTACKS.register(name)(made)

    return enter
