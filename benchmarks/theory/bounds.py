"""The bounds that the papers print, evaluated. The pages docs/theory/*.md list their faults.

FedDW's are on its regulariser, its convergence and a Hessian, FedSSA's on its loss and headers. Those of FedSKC and
FedSC differ in one factor: kappa = 1 / (M + 1) for FedSKC and (M + 2) / (M + 1) for FedSC, with M merged prototypes.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from torch.func import grad, jacrev

from benchmarks.theory.measured_round import Constants, require_numbers
from fedloom.core.errors import ConfigError
from fedloom.core.tables import ClassTable


@dataclass(frozen=True, slots=True)
class PrintedBound:
    """A printed statement, evaluated.

    statement: its name, e.g. "FedSKC, Theorem 2 (Eq. 19)". quantity: the bounded quantity, in words. value: the bound;
    NaN where the condition is not met. condition: when the statement says anything, as a formula in words; empty where
    it always does.
    """

    statement: str
    quantity: str
    value: float
    condition: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the constants meet the condition."""
        return not math.isnan(self.value)


def feddw_bounds(
    constants: Constants, *, weight: float, classes: int, target: float, rounds: int
) -> Mapping[str, PrintedBound]:
    """Evaluate Theorems 1 to 3 and Equations 21 and 22 of FedDW.

    constants: of one client and round; `steps` is R. weight: mu, the weight of the regulariser. classes: |C|. target:
    epsilon, the mean squared gradient that shall be reached. rounds: T.

    Returns the bounds by name; where the paper prints a faulty form, that has the suffix "_printed".
    """
    if weight < 0 or classes < 2 or target <= 0 or rounds < 1:
        raise ConfigError(
            f"weight {weight}, classes {classes}, target {target}, rounds {rounds}: the weight must be 0 or more, the "
            "classes at least 2, the target above 0, the rounds at least 1"
        )
    c, variance = constants, constants.gradient_variance
    noise = c.steps * c.smoothness * c.lr**2 * variance
    double_descent = 2 * c.descent if c.descent > 0 else math.nan  # Theorem 3 needs eta < 2 / L1
    first = 2 * c.gap / (rounds * double_descent)
    gain = target * classes * 2 * c.descent - classes * noise - 4 * weight
    lower, upper = _lr_window(c.smoothness, target + c.steps * variance, target, weight, classes)
    # Eq. 22 as printed subtracts R sigma^2: with its rate, the denominator of Eq. 21 can become negative.
    printed_upper = _lr_window(c.smoothness, target - c.steps * variance, target, weight, classes)[1]
    gradient, rate = "mean over rounds of the summed squared gradient, at most", "learning rate, below"
    window = "mu <= epsilon^2 |C| / (4 L1 (epsilon + R sigma^2))"
    return {
        "regulariser": PrintedBound("FedDW, Theorem 1 (Eq. 18)", "the regulariser, at most", 2 / classes),
        "loss": PrintedBound(
            "FedDW, Theorem 2",
            "loss at the start of the next round, at most",
            c.loss - c.descent * c.squared_gradients + noise / 2 + 2 * weight / classes,
        ),
        "gradient": PrintedBound(
            "FedDW, Theorem 3, corrected",
            gradient,
            first + noise / double_descent + 4 * weight / (double_descent * classes),
            "eta < 2 / L1",
        ),
        # As printed, |C| divides the term of the variance as well.
        "gradient_printed": PrintedBound(
            "FedDW, Theorem 3, as printed (with E = R)",
            gradient,
            first + (noise + 4 * weight) / (double_descent * classes),
            "eta < 2 / L1",
        ),
        "rounds": PrintedBound(
            "FedDW, Eq. 21, with T >=",
            "rounds until the summed squared gradient is below epsilon, at least",
            2 * classes * c.gap / gain if gain > 0 else math.nan,
            "the learning rate lies in the window of Eq. 22",
        ),
        "lowest_lr": PrintedBound("FedDW, Eq. 22, the lower root", "learning rate, above", lower, window),
        "largest_lr": PrintedBound("FedDW, Eq. 22, corrected", rate, upper, window),
        "largest_lr_printed": PrintedBound("FedDW, Eq. 22, as printed", rate, printed_upper, "epsilon > R sigma^2"),
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
    matrix: Tensor = jacrev(grad(value))(weights.detach().double()).reshape(count, count)
    # Rounding may leave the two triangles different in their last bits.
    return (matrix + matrix.T) / 2


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
    before_fusion = c.loss - c.descent * c.squared_gradients + noise
    fusion = -c.lr * smoothness * header_distance / 2
    step = 2 - smoothness * c.lr
    excess = smoothness * (c.steps * c.lr * c.gradient_variance - header_distance)
    gain = c.lr * target * step - c.lr * excess
    largest_lr = (2 * target + smoothness * header_distance) / (smoothness * (target + c.steps * c.gradient_variance))
    return {
        "loss_before_fusion": PrintedBound(
            "FedSSA, Lemma 1", "loss at the end of the round, before headers are fused, at most", before_fusion
        ),
        "fusion": PrintedBound("FedSSA, Lemma 2", "change of the loss when headers are fused, at most", fusion),
        "loss": PrintedBound(
            "FedSSA, Theorem 1", "loss at the start of the next round, at most", before_fusion + fusion
        ),
        "gradient": PrintedBound(
            "FedSSA, Theorem 2 (Eq. 23)",
            "mean over rounds of the summed squared gradient, at most",
            2 * c.gap / (rounds * c.lr * step) + excess / step if step > 0 else math.nan,
            "eta < 2 / L1",
        ),
        "rounds": PrintedBound(
            "FedSSA, Theorem 2 (Eq. 24)",
            "rounds until the summed squared gradient is below epsilon, at least",
            2 * c.gap / gain if gain > 0 else math.nan,
            "the learning rate is below the one of Eq. 25",
        ),
        "largest_lr": PrintedBound(
            "FedSSA, Theorem 2 (Eq. 25)",
            "learning rate, below",
            # Eq. 25 alone lies above 2 / L1 where L1 delta^2 > 2 E sigma^2, and Theorem 2 says nothing there.
            min(largest_lr, 2 / smoothness),
            "also eta < 2 / L1",
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
_STATEMENTS = {
    "fedskc": ("FedSKC, Theorem 1 (Eq. 6)", "FedSKC, Theorem 2", "FedSKC, Theorem 3 (Eq. 8)"),
    "fedsc": ("FedSC, Theorem 1 (Eq. 17)", "FedSC, Theorem 2 (Eq. 18)", "FedSC, Theorem 3 (Eq. 19, 20)"),
}


@dataclass(frozen=True, slots=True)
class PrototypeConstants:
    """The quantities that only the bounds of FedSKC and FedSC need.

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
        require_numbers(self, positive=("feature_lipschitz", "gradient_bound", "classes", "target"), others=("merged",))


def kappa_of(method: Method, merged: int) -> float:
    """Return 1 / (M + 1) for FedSKC, (M + 2) / (M + 1) for FedSC."""
    return (1 if method == "fedskc" else merged + 2) / (merged + 1)


def prototype_bounds(
    method: Method, constants: Constants, prototypes: PrototypeConstants
) -> Mapping[str, PrintedBound]:
    """Evaluate Theorems 1 to 3 of FedSKC or FedSC.

    method: "fedskc" or "fedsc". constants: of one client and round. prototypes: further constants of these theorems.

    Returns the bounds by quantity: "change" of the loss over a round (Theorem 1), "descending_lr" below which
    that change is negative (Theorem 2), "converging_lr" and "rounds" (Theorem 3).
    """
    c, p = constants, prototypes
    theorem_1, theorem_2, theorem_3 = _STATEMENTS[method]
    drift = kappa_of(method, p.merged) * p.feature_lipschitz * p.classes  # kappa L2 |C|
    smoothness, variance, bound = c.smoothness, c.gradient_variance, p.gradient_bound
    change = -c.descent * c.steps * bound**2 + smoothness * c.steps * c.lr**2 / 2 * variance
    change += c.steps * c.lr * drift * bound
    descending_lr = 2 * (bound**2 - drift * bound) / (smoothness * (variance + bound**2))
    converging_lr = 2 * (p.target - drift * bound) / (smoothness * (p.target + variance))
    gain = p.target * c.steps * c.lr * (2 - smoothness * c.lr) - smoothness * c.steps * c.lr**2 * variance
    gain -= 2 * c.steps * c.lr * drift * bound
    return {
        "change": PrintedBound(theorem_1, "change of the loss over one round, at most", change),
        "descending_lr": PrintedBound(
            theorem_2,
            "learning rate below which the loss falls in every round",
            descending_lr if bound > drift else math.nan,
            f"B > kappa L2 |C| = {drift:.4g}",
        ),
        "converging_lr": PrintedBound(
            theorem_3,
            "learning rate below which the number of rounds is finite",
            converging_lr if p.target > drift * bound else math.nan,
            f"xi > kappa L2 |C| B = {drift * bound:.4g}",
        ),
        "rounds": PrintedBound(
            theorem_3,
            "rounds until the mean squared gradient is below xi, at least",
            2 * c.gap / gain if gain > 0 else math.nan,
            "the learning rate is below the one of Theorem 3",
        ),
    }
