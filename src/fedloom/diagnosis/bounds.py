"""The bounds that the papers print, evaluated, with what is wrong in them.

FedDW's are on its regulariser, its convergence and a Hessian, FedSSA's on its loss and headers. Those of FedSKC and
FedSC differ in one factor: kappa = 1 / (M + 1) for FedSKC and (M + 2) / (M + 1) for FedSC, with M merged prototypes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.func import grad, jacrev

from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable
from fedloom.diagnosis.measured_round import Constants, PrintedBound, positive_or_nan

FEDDW_CAVEATS = (
    "Theorem 1 is printed with a strict lower bound; 0 is reached. 2 / |C| is reached only in the limit of disjoint "
    "one-hot rows.",
    "Theorem 2 takes the loss as convex in the weights, and the server's mean as unweighted; the method weighs by "
    "size.",
    "Theorem 3 is printed without a factor |C| in one term, and with E for R. The corrected form follows from "
    "Theorem 2.",
    "Equation 21 is printed with T <= ...; a number of rounds has to be at least that.",
    "Equation 22 is printed with epsilon - R sigma^2; the root has epsilon + R sigma^2, and there is a lower one, too.",
    "Equations 24 and 25, the gradient and the Hessian of the regulariser, are not its derivatives; that it is not "
    "convex is true all the same.",
)


def feddw_bounds(
    constants: Constants, *, weight: float, classes: int, target: float, rounds: int
) -> Mapping[str, PrintedBound]:
    """Evaluate Theorems 1 to 3 and Equations 21 and 22 of FedDW.

    constants: of one client and round; `steps` is R. weight: mu, the weight of the regulariser. classes: |C|. target:
    epsilon, the mean squared gradient that shall be reached. rounds: T.

    Returns the bounds by name; those that are printed with a fault have the suffix "_printed" beside the corrected one.
    """
    if weight < 0 or classes < 2 or target <= 0 or rounds < 1:
        raise ConfigError(
            f"weight {weight}, classes {classes}, target {target}, rounds {rounds}: the weight must be 0 or more, the "
            "classes at least 2, the target above 0, the rounds at least 1"
        )
    c, variance = constants, constants.gradient_variance
    noise = c.steps * c.smoothness * c.lr**2 * variance
    double_descent = 2 * c.descent
    loss = c.loss - c.descent * c.squared_gradients + noise / 2 + 2 * weight / classes
    first = 2 * c.gap / (rounds * double_descent)
    gain = target * classes * double_descent - classes * noise - 4 * weight
    lower, upper = _lr_window(c.smoothness, target + c.steps * variance, target, weight, classes)
    has_window = not math.isnan(lower)
    printed_upper = _lr_window(c.smoothness, target - c.steps * variance, target, weight, classes)[1]
    descends = double_descent > 0
    return {
        "regulariser": PrintedBound("FedDW, Theorem 1 (Eq. 18)", "the regulariser, at most", 2 / classes),
        "loss": PrintedBound("FedDW, Theorem 2", "loss at the start of the next round, at most", loss),
        "gradient": PrintedBound(
            "FedDW, Theorem 3, corrected",
            "mean over rounds of the summed squared gradient, at most",
            positive_or_nan(
                first + noise / double_descent + 4 * weight / (double_descent * classes) if descends else 0.0, descends
            ),
            "eta < 2 / L1",
            descends,
        ),
        "gradient_printed": PrintedBound(
            "FedDW, Theorem 3, as printed (with E = R)",
            "mean over rounds of the summed squared gradient, at most",
            positive_or_nan(first + (noise + 4 * weight) / (double_descent * classes) if descends else 0.0, descends),
            "eta < 2 / L1",
            descends,
        ),
        "rounds": PrintedBound(
            "FedDW, Eq. 21, with T >=",
            "rounds until the summed squared gradient is below epsilon, at least",
            2 * classes * c.gap / gain if gain > 0 else math.nan,
            "the learning rate lies in the window of Eq. 22",
            gain > 0,
        ),
        "lowest_lr": PrintedBound(
            "FedDW, Eq. 22, the lower root",
            "learning rate, above",
            lower,
            "mu <= epsilon^2 |C| / (4 L1 (epsilon + R sigma^2))",
            has_window,
        ),
        "largest_lr": PrintedBound(
            "FedDW, Eq. 22, corrected",
            "learning rate, below",
            upper,
            "mu <= epsilon^2 |C| / (4 L1 (epsilon + R sigma^2))",
            has_window,
        ),
        "largest_lr_printed": PrintedBound(
            "FedDW, Eq. 22, as printed",
            "learning rate, below",
            printed_upper,
            "epsilon > R sigma^2",
            not math.isnan(printed_upper),
        ),
    }


def _lr_window(
    smoothness: float, noisy_target: float, target: float, weight: float, classes: int
) -> tuple[float, float]:
    """The roots in eta of `target` |C| (2 eta - ...) = 4 mu, whose squared coefficient has `noisy_target`; else NaN."""
    discriminant = (target * classes) ** 2 - 4 * weight * smoothness * classes * noisy_target
    if noisy_target <= 0 or discriminant < 0:
        return math.nan, math.nan
    root, divisor = math.sqrt(discriminant), smoothness * classes * noisy_target
    return (target * classes - root) / divisor, (target * classes + root) / divisor


def hessian_of(value: Callable[[Tensor], Tensor], weights: Tensor) -> Tensor:
    """The Hessian [n, n] of a function of a weight matrix with n entries, by automatic differentiation, in float64.

    value: maps the weights to a scalar []. weights: the point [C, d].

    Example:
        >>> hessian_of(lambda weights: weights.square().sum(), torch.zeros(1, 2))
        tensor([[2., 0.],
                [0., 2.]], dtype=torch.float64)
    """
    count = weights.numel()
    gradient = grad(value)
    matrix: Tensor = jacrev(gradient)(weights.detach().double()).reshape(count, count)
    return (matrix + matrix.T) / 2


FEDSSA_CAVEATS = (
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

    constants: of one client and round; `steps` is E. header_distance: delta^2, the squared distance of the global and
    the local header (`header_distances`). target: epsilon, the mean squared gradient that shall be reached. rounds: T.
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

    global_header: the server's header, a row [d] for each class [C, d]. local_header: the client's [C, d].
    """
    both = global_header.held & local_header.held
    if not bool(both.any()):
        raise ConfigError("the global and the local header share no class: FedSSA's Assumption 3 says nothing here")
    return (global_header.values[both].double() - local_header.values[both].double()).square().sum(1)


Method = Literal["fedskc", "fedsc"]
PROTOTYPE_CAVEATS = (
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

    feature_lipschitz: L2, the Lipschitz constant of the features in the weights. gradient_bound: B, the largest mean
    norm of a mini-batch gradient. classes: |C|, the number of classes. merged: M, the number of prototypes that are
    merged with a class's own. target: xi, the mean squared gradient that shall be reached.
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

    method: "fedskc" or "fedsc". constants: of one client and round. prototypes: what these theorems need beside them.

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
