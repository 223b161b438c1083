"""Printed bounds, evaluated, and the constants that all papers' bounds share."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedloom.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PrintedBound:
    """A printed statement, evaluated.

    Attributes:
        statement: its name, e.g. "FedSKC, Theorem 2 (Eq. 19)".
        quantity: what the value bounds, in words.
        value: the bound; NaN where the condition leaves none.
        condition: when the statement says anything, as a formula in words; empty where it always does.
        is_met: whether the constants meet the condition.
    """

    statement: str
    quantity: str
    value: float
    condition: str = ""
    is_met: bool = True


@dataclass(frozen=True, slots=True)
class Constants:
    """The quantities in the bounds of FedSKC, FedSC, FedDW and FedSSA, for one client.

    Attributes:
        smoothness: L1, the Lipschitz constant of the loss's gradient.
        gradient_variance: sigma^2, the variance of a mini-batch gradient: the mean square of its distance to the
            gradient of all data.
        lr: eta, the learning rate.
        steps: number of gradient steps in a round. The papers call it E or R, and FedSKC introduces E as epochs.
        loss: the loss at the start of a round.
        best_loss: L*, the smallest loss that can be reached.
        squared_gradients: the sum over the round's steps of the squared norm of the gradient.
    """

    smoothness: float
    gradient_variance: float
    lr: float
    steps: int
    loss: float
    best_loss: float = 0.0
    squared_gradients: float = 0.0

    def __post_init__(self) -> None:
        positive = {"smoothness": self.smoothness, "lr": self.lr, "steps": self.steps}
        for name, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} = {value}: must be a finite number above 0")
        for name, value in {
            "gradient_variance": self.gradient_variance,
            "squared_gradients": self.squared_gradients,
        }.items():
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} = {value}: must be a finite number, 0 or more")
        if not self.best_loss <= self.loss < math.inf:
            raise ConfigError(f"loss = {self.loss}: must be finite, and best_loss ({self.best_loss}) at most")

    @property
    def gap(self) -> float:
        """L_0 - L*."""
        return self.loss - self.best_loss

    @property
    def descent(self) -> float:
        """eta - L1 eta^2 / 2: what a step gains of the squared gradient, at least."""
        return self.lr - self.smoothness * self.lr**2 / 2


def positive_or_nan(value: float, is_met: bool) -> float:
    """Return `value` where a condition is met, else NaN.

    Example:
        >>> positive_or_nan(0.5, is_met=False)
        nan
    """
    return value if is_met else math.nan
