"""Points on the simplex: the minimum of a quadratic function, exactly; projections; rows spread over it."""

from __future__ import annotations

import torch
from torch import Tensor

_TOLERANCE = 1e-12  # of the largest entry of the matrix: below it, a difference is rounding


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
