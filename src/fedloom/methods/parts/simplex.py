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


def project_to_simplex(rows: Tensor, size: float) -> Tensor:
    """Return the nearest points of 0 and more that sum to `size` (Duchi et al., ICML 2008, Figure 1).

    Args:
        rows: points [n, m].
        size: the sum of each row of the result, above 0.

    Example:
        >>> project_to_simplex(torch.tensor([[3.0, 2.5, -1.0]]), 1.0)
        tensor([[0.7500, 0.2500, 0.0000]])
    """
    ordered = rows.sort(dim=1, descending=True).values
    excess = (ordered.cumsum(1) - size) / torch.arange(1, rows.shape[1] + 1, device=rows.device)
    last = (ordered > excess).sum(1, keepdim=True) - 1
    return (rows - excess.gather(1, last)).clamp(min=0)


def spread_on_simplex(rows: Tensor) -> Tensor:
    """Project rows to simplices of 1,000 sizes, scale them to the sum 1, and return those that lie farthest apart.

    As in Floco (Grinwald et al., NeurIPS 2024): sizes from 1e-4 to 1; of equally good ones the least is taken.

    Args:
        rows: points [n, m].
    """
    found, least = project_to_simplex(rows, 1.0), torch.inf
    for size in torch.linspace(1e-4, 1, 1000, dtype=torch.float64).tolist() if len(rows) > 1 else ():
        places = project_to_simplex(rows, size)
        places = places / places.sum(1, keepdim=True)
        if (energy := riesz_energy(places)) < least:
            found, least = places, energy
    return found


def riesz_energy(rows: Tensor) -> float:
    """Return the logarithm of the mean of 1 / distance^2 over pairs of rows [n, d]; the least distance is 1e-4."""
    return float(torch.pdist(rows).clamp(min=1e-4).pow(-2).mean().log())


def principal_components(rows: Tensor, count: int) -> Tensor:
    """Return the scores of the first `count` principal components [n, count], float64; 0 where rows span fewer.

    The sign of a component makes its largest entry positive.

    Args:
        rows: samples [n, p].
        count: number of components.

    Example:
        >>> principal_components(torch.tensor([[0.0, 0.0], [0.0, 2.0], [0.0, 7.0]]), 2).round(decimals=6)
        tensor([[-3.,  0.],
                [-1.,  0.],
                [ 4.,  0.]], dtype=torch.float64)
    """
    centred = rows.double() - rows.double().mean(0)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
    values = torch.where(values > _TOLERANCE * values.max().clamp(min=1e-300), values, 0.0)
    scores = vectors * values.sqrt()
    largest = scores.gather(0, scores.abs().argmax(0, keepdim=True))
    scores = torch.where(largest < 0, -scores, scores)
    return torch.cat([scores, scores.new_zeros(len(rows), count - scores.shape[1])], 1) + 0.0
