"""Distances between label distributions, all in [0, 1]: 0 of equal distributions, 1 of those without a common class."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedloom.data.statistics import total_variation

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.int64]
Distance = Literal["total_variation", "jensen_shannon", "hellinger"]
DISTANCES: tuple[Distance, ...] = ("total_variation", "jensen_shannon", "hellinger")


def shares_of(counts: Counts) -> Floats:
    """Class shares [N, C] of counts [N, C]; a row without samples becomes zeros.

    Example:
        >>> shares_of(np.array([[3, 1], [0, 0]]))
        array([[0.75, 0.25],
               [0.  , 0.  ]])
    """
    totals = counts.sum(1, keepdims=True)
    return np.asarray(counts / np.maximum(totals, 1))


def distance(kind: Distance, first: Floats, second: Floats) -> Floats:
    """Return the distances [...] of distributions [..., C] that broadcast.

    total_variation: 1/2 sum |p - q|. jensen_shannon: the root of the Jensen-Shannon divergence with base 2. hellinger:
    the root of 1 - sum sqrt(p q), as in arXiv 2503.17070.

    Args:
        kind: which distance.
        first: p.
        second: q.

    Example:
        >>> distance("hellinger", np.array([0.5, 0.5]), np.array([1.0, 0.0])).round(4)
        np.float64(0.5412)
    """
    if kind == "total_variation":
        return total_variation(first, second)
    if kind == "hellinger":
        return np.asarray(np.sqrt(np.clip(1 - np.sqrt(first * second).sum(-1), 0, 1)))
    middle = (first + second) / 2
    divergence = entropy(middle) - (entropy(first) + entropy(second)) / 2
    return np.asarray(np.sqrt(np.clip(divergence / np.log(2), 0, 1)))


def entropy(shares: Floats) -> Floats:
    """Return the entropy [...] in nats of distributions [..., C]; 0 log 0 is 0."""
    logs = np.log(shares, where=shares > 0, out=np.zeros_like(shares))
    return np.asarray(-(shares * logs).sum(-1))


def pairwise(kind: Distance, shares: Floats) -> Floats:
    """Return the distances [N, N] of all pairs of distributions [N, C]; 0 on the diagonal.

    Args:
        kind: which distance.
        shares: the distributions.
    """
    matrix = np.stack([distance(kind, row, shares) for row in shares]) if len(shares) else np.zeros((0, 0))
    np.fill_diagonal(matrix, 0)
    return matrix


def mean_of_pairs(matrix: Floats) -> float:
    """Return the mean of a symmetric matrix [N, N] over its pairs; 0 for a single one.

    Example:
        >>> mean_of_pairs(np.array([[0.0, 0.4], [0.4, 0.0]]))
        0.4
    """
    size = len(matrix)
    return float(matrix.sum() / (size * (size - 1))) if size > 1 else 0.0


def gini(amounts: Floats | Counts) -> float:
    """Return Gini's coefficient of amounts [n]: 0 if all are equal, near 1 if one has everything; 0 of nothing.

    Example:
        >>> gini(np.array([1, 1, 1])), gini(np.array([0, 0, 3])).__round__(4)
        (0.0, 0.6667)
    """
    ordered, count = np.sort(np.asarray(amounts, dtype=np.float64)), len(amounts)
    total = ordered.sum()
    if count == 0 or total == 0:
        return 0.0
    return float((2 * np.arange(1, count + 1) - count - 1) @ ordered / (count * total))
