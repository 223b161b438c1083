"""The lemmas and theorems of FedSSA, and what its assumption on the headers is in a run."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.diagnosis.theory.printed_bound import Constants, PrintedBound, positive_or_nan

CAVEATS = (
    "Lemma 1 is printed with the loss where its gradient is meant.",
    "Lemma 2's proof leaves out an inner product, bounds a squared difference by its negative part, and then bounds "
    "-|.|^2 by -delta^2, though |.|^2 is at most delta^2. Fusing headers can raise the loss: measure it before and "
    "after.",
    "Theorems 1 and 2 follow from Lemma 2, so they are no guarantees either.",
)


def fedssa_bounds(
    constants: Constants, *, header_distance: float, target: float, rounds: int
) -> Mapping[str, PrintedBound]:
    """Evaluate Lemmas 1 and 2, Theorems 1 and 2 and Equations 23 to 25 of FedSSA.

    Args:
        constants: of one client and round; `steps` is E.
        header_distance: delta^2, the squared distance of the global and the local header (`header_distances`).
        target: epsilon, the mean squared gradient that shall be reached.
        rounds: T.
    """
    if header_distance < 0 or target <= 0 or rounds < 1:
        raise ConfigError(
            f"header_distance {header_distance}, target {target}, rounds {rounds}: the distance must be 0 or more, the "
            "target above 0, the rounds at least 1"
        )
    c, smoothness = constants, constants.smoothness
    noise = smoothness * c.steps * c.lr**2 * c.gradient_variance / 2
    fusion = -c.lr * smoothness * header_distance / 2
    step = 2 - smoothness * c.lr
    excess = smoothness * (c.steps * c.lr * c.gradient_variance - header_distance)
    gain = c.lr * target * step - c.lr * excess
    largest_lr = (2 * target + smoothness * header_distance) / (smoothness * (target + c.steps * c.gradient_variance))
    descends = step > 0
    gradient = 2 * c.gap / (rounds * c.lr * step) + excess / step if descends else math.nan
    return {
        "loss_before_fusion": PrintedBound(
            "FedSSA, Lemma 1",
            "loss at the end of the round, before headers are fused, at most",
            c.loss - c.descent * c.squared_gradients + noise,
        ),
        "fusion": PrintedBound("FedSSA, Lemma 2", "change of the loss when headers are fused, at most", fusion),
        "loss": PrintedBound(
            "FedSSA, Theorem 1",
            "loss at the start of the next round, at most",
            c.loss - c.descent * c.squared_gradients + noise + fusion,
        ),
        "gradient": PrintedBound(
            "FedSSA, Theorem 2 (Eq. 23)",
            "mean over rounds of the summed squared gradient, at most",
            gradient,
            "eta < 2 / L1",
            descends,
        ),
        "rounds": PrintedBound(
            "FedSSA, Theorem 2 (Eq. 24)",
            "rounds until the summed squared gradient is below epsilon, at least",
            positive_or_nan(2 * c.gap / gain if gain > 0 else 0.0, gain > 0),
            "the learning rate is below the one of Eq. 25",
            gain > 0,
        ),
        "largest_lr": PrintedBound(
            "FedSSA, Theorem 2 (Eq. 25)",
            "learning rate, below",
            min(largest_lr, 2 / smoothness),
            "eta < 2 / L1, too",
        ),
    }


def header_distances(global_header: ClassTable, local_header: ClassTable) -> Tensor:
    """Squared distances [S] of the rows that both headers hold, in float64: their mean is the paper's delta^2.

    Assumption 3 of FedSSA bounds them. Raises `ConfigError` if no class is held by both.

    Args:
        global_header: the server's header, a row [d] for each class [C, d].
        local_header: the client's [C, d].
    """
    both = global_header.held & local_header.held
    if not bool(both.any()):
        raise ConfigError("the global and the local header share no class: FedSSA's Assumption 3 says nothing here")
    return (global_header.values[both].double() - local_header.values[both].double()).square().sum(1)
