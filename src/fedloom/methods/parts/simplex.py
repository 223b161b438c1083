"""Points on the simplex: the minimum of a quadratic function, exactly; projections; rows spread over it."""

from __future__ import annotations

import torch
from torch import Tensor

_TOLERANCE = 1e-12  # of the largest entry of the matrix: below it, a difference is rounding


def minimum_on_simplex(matrix: Tensor) -> Tensor:
    """Return the weights a [m] that minimise a^T matrix a, with a of 0 and more that sum to 1.

    The active set method of Lawson and Hanson (1974, chapter 23), with the sum as a constraint: weights join the
    support one by one, by the largest decrease, and leave it where they would fall below 0. Each support is solved
    exactly, so that no step size and no solver is involved; it ends, because the value falls with every support.

    Args:
        matrix: symmetric and positive semidefinite [m, m], m of 1 or more. All arithmetic is float64.

    Example:
        >>> minimum_on_simplex(torch.tensor([[1.0, 0.0], [0.0, 3.0]]))
        tensor([0.7500, 0.2500], dtype=torch.float64)
    """
    quadratic = matrix.double()
    count, tolerance = len(quadratic), _TOLERANCE * float(quadratic.abs().max().clamp(min=1e-300))
    weights = torch.zeros(count, dtype=torch.float64)
    weights[int(quadratic.diagonal().argmin())] = 1.0
    support = weights > 0
    for _ in range(3 * count + 10):  # supports never come back; the bound is for rounding alone
        slopes = quadratic @ weights
        excess = torch.where(support, torch.inf, slopes - weights @ slopes)
        if support.all() or float(excess.min()) >= -tolerance:
            break
        support[int(excess.argmin())] = True
        weights, support = _descend_to_support(quadratic, weights, support)
    return weights


def _descend_to_support(quadratic: Tensor, weights: Tensor, support: Tensor) -> tuple[Tensor, Tensor]:
    """Move to the minimum over weights of `support` [m] that sum to 1; those that reach 0 on the way leave it."""
    support = support.clone()
    while True:
        target = _minimum_on_support(quadratic, support)
        falling = support & (target <= 0)
        if not falling.any():
            return target, support
        share = torch.where(falling, weights / (weights - target).clamp(min=1e-300), torch.inf).min().clamp(max=1)
        weights = weights + share * (target - weights)
        leaving = falling & (weights <= 1e-15)
        leaving[int(torch.where(falling, weights, torch.inf).argmin())] = True
        support, weights = support & ~leaving, torch.where(leaving, 0.0, weights)


def _minimum_on_support(quadratic: Tensor, support: Tensor) -> Tensor:
    """Return the stationary point [m] of weights that sum to 1 and are 0 outside `support`, of either sign."""
    part = quadratic[support][:, support]
    size = len(part)
    system = torch.ones(size + 1, size + 1, dtype=torch.float64)
    system[:size, :size], system[size, size] = part, 0.0
    right = torch.zeros(size + 1, dtype=torch.float64)
    right[size] = 1.0
    scale = float(part.abs().max().clamp(min=1e-300))
    system[:size, :size] /= scale
    solution = torch.linalg.lstsq(system, right.unsqueeze(1), driver="gelsd").solution[:size, 0]
    weights = torch.zeros(len(quadratic), dtype=torch.float64)
    weights[support] = solution / solution.sum()
    return weights
