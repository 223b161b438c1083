"""FedDW's theory: the range of its regulariser, its convergence bounds, and its claim about a Hessian."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from torch import Tensor
from torch.func import grad, jacrev

from fedloom.core.errors import ConfigError
from fedloom.diagnosis.theory.printed_bound import Constants, PrintedBound, positive_or_nan

CAVEATS = (
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

    Args:
        constants: of one client and round; `steps` is R.
        weight: mu, the weight of the regulariser.
        classes: |C|.
        target: epsilon, the mean squared gradient that shall be reached.
        rounds: T.

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

    Args:
        value: maps the weights to a scalar [].
        weights: the point [C, d].

    Example:
        >>> hessian_of(lambda weights: weights.square().sum(), torch.zeros(1, 2))
        tensor([[2., 0.],
                [0., 2.]], dtype=torch.float64)
    """
    count = weights.numel()
    gradient = grad(value)
    matrix: Tensor = jacrev(gradient)(weights.detach().double()).reshape(count, count)
    return (matrix + matrix.T) / 2
