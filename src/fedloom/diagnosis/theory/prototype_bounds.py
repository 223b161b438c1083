"""The convergence bounds of FedSKC and FedSC, which differ in one factor.

kappa = 1 / (M + 1) for FedSKC and (M + 2) / (M + 1) for FedSC, where M is the number of prototypes that are merged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from fedloom.core.errors import ConfigError
from fedloom.diagnosis.theory.printed_bound import Constants, PrintedBound, positive_or_nan

Method = Literal["fedskc", "fedsc"]
CAVEATS = (
    "The proof replaces the sum of squared gradients by E B^2, though B bounds the gradient from above: the direction "
    "is wrong, so the bound of Theorem 1 is no guarantee.",
    "E counts gradient steps in the sums, and is introduced as a number of epochs.",
    "The temperature, the uncertainty and the server's weights do not occur in the bounds; FedSKC's proof weighs "
    "clients by size, its Equation 1 uniformly.",
    "FedSC's proof bounds the global weight of the regulariser with an L2 norm; its Equation 15 has an L1 norm.",
    "With many classes the condition needs a small L2: with 100 classes, L2 < B / (100 kappa).",
)
_STATEMENTS = {
    "fedskc": {"change": "FedSKC, Theorem 1 (Eq. 6)", "lr": "FedSKC, Theorem 2", "rounds": "FedSKC, Theorem 3 (Eq. 8)"},
    "fedsc": {
        "change": "FedSC, Theorem 1 (Eq. 17)",
        "lr": "FedSC, Theorem 2 (Eq. 18)",
        "rounds": "FedSC, Theorem 3 (Eq. 19, 20)",
    },
}


@dataclass(frozen=True, slots=True)
class PrototypeConstants:
    """The quantities that the bounds of FedSKC and FedSC need beside `Constants`.

    Attributes:
        feature_lipschitz: L2, the Lipschitz constant of the features in the weights.
        gradient_bound: B, the largest mean norm of a mini-batch gradient.
        classes: |C|, the number of classes.
        merged: M, the number of prototypes that are merged with a class's own.
        target: xi, the mean squared gradient that shall be reached.
    """

    feature_lipschitz: float
    gradient_bound: float
    classes: int
    merged: int
    target: float

    def __post_init__(self) -> None:
        values = {
            "feature_lipschitz": self.feature_lipschitz,
            "gradient_bound": self.gradient_bound,
            "classes": self.classes,
            "target": self.target,
        }
        for name, value in values.items():
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} = {value}: must be a finite number above 0")
        if self.merged < 0:
            raise ConfigError(f"merged = {self.merged}: must be 0 or more")


def kappa_of(method: Method, merged: int) -> float:
    """Return 1 / (M + 1) for FedSKC, (M + 2) / (M + 1) for FedSC.

    Example:
        >>> kappa_of("fedskc", 1), kappa_of("fedsc", 1)
        (0.5, 1.5)
    """
    return (1 if method == "fedskc" else merged + 2) / (merged + 1)


def prototype_bounds(
    method: Method, constants: Constants, prototypes: PrototypeConstants
) -> Mapping[str, PrintedBound]:
    """Evaluate Theorems 1 to 3 of FedSKC or FedSC.

    Args:
        method: "fedskc" or "fedsc".
        constants: of one client and round.
        prototypes: what these theorems need beside them.

    Returns the bounds by what they bound: "change" of the loss over a round (Theorem 1), "descending_lr" below which
    that change is negative (Theorem 2), "converging_lr" and "rounds" (Theorem 3).
    """
    c, p, names = constants, prototypes, _STATEMENTS[method]
    drift = kappa_of(method, p.merged) * p.feature_lipschitz * p.classes  # kappa L2 |C|
    smoothness, variance, bound = c.smoothness, c.gradient_variance, p.gradient_bound
    change = -c.descent * c.steps * bound**2 + smoothness * c.steps * c.lr**2 / 2 * variance
    change += c.steps * c.lr * drift * bound
    descends, converges = bound > drift, p.target > drift * bound
    descending_lr = 2 * (bound**2 - drift * bound) / (smoothness * (variance + bound**2))
    converging_lr = 2 * (p.target - drift * bound) / (smoothness * (p.target + variance))
    gain = p.target * c.steps * c.lr * (2 - smoothness * c.lr) - smoothness * c.steps * c.lr**2 * variance
    gain -= 2 * c.steps * c.lr * drift * bound
    rounds = 2 * c.gap / gain if gain > 0 else math.nan
    return {
        "change": PrintedBound(names["change"], "change of the loss over one round, at most", change),
        "descending_lr": PrintedBound(
            names["lr"],
            "learning rate below which the loss falls in every round",
            positive_or_nan(descending_lr, descends),
            f"B > kappa L2 |C| = {drift:.4g}",
            descends,
        ),
        "converging_lr": PrintedBound(
            names["rounds"],
            "learning rate below which the number of rounds is finite",
            positive_or_nan(converging_lr, converges),
            f"xi > kappa L2 |C| B = {drift * bound:.4g}",
            converges,
        ),
        "rounds": PrintedBound(
            names["rounds"],
            "rounds until the mean squared gradient is below xi, at least",
            rounds,
            "the learning rate is below the one of Theorem 3",
            gain > 0,
        ),
    }
