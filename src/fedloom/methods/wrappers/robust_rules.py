"""Rules that reduce the vectors of several clients to one that a few bad ones cannot move far."""

import torch
from torch import Tensor


def median(rows: Tensor) -> Tensor:
    """Compute the median of each coordinate: rows [m, p] -> [p]. Yin et al., ICML 2018, arXiv 1803.01498.

    For an even number of rows it is the mean of the middle two.

    Example:
        >>> median(torch.tensor([[1.0, 5.0], [2.0, 6.0], [90.0, 7.0]]))
        tensor([2., 6.])
    """
    ordered = rows.sort(0).values
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


def trimmed_mean(rows: Tensor, share: float) -> Tensor:
    """Compute the mean of each coordinate without its largest and smallest values (Yin et al., ICML 2018, 1803.01498).

    rows: uploads of m clients [m, p]; the result is [p]. share: share of the rows that is left out at each end.

    Example:
        >>> trimmed_mean(torch.tensor([[1.0], [2.0], [3.0], [90.0]]), share=0.25)
        tensor([2.5000])
    """
    dropped = trimmed_rows(len(rows), share)
    return rows.sort(0).values[dropped : len(rows) - dropped].mean(0)


def trimmed_rows(count: int, share: float) -> int:
    """Return how many of `count` rows a trimmed mean leaves out at each end.

    count: number of rows. share: share of them that is meant to be left out at each end.
    """
    return int(share * count + 1e-9)


def krum_scores(rows: Tensor, faulty: int) -> Tensor:
    """Sum the squared distances of each row to its m - f - 2 nearest neighbours: rows [m, p] -> [m]."""
    return _scores(_squared_distances(rows), faulty)


def _squared_distances(rows: Tensor) -> Tensor:
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()


def _scores(squares: Tensor, faulty: int) -> Tensor:
    return squares.sort(1).values[:, 1 : max(2, len(squares) - faulty - 1)].sum(1)


def krum(rows: Tensor, faulty: int) -> Tensor:
    """Choose the row that is nearest to its neighbours (Blanchard et al., NeurIPS 2017, arXiv 1703.02757).

    rows: uploads of m clients [m, p]; the result is [p]. faulty: number of bad rows that it withstands.

    Example:
        >>> krum(torch.tensor([[1.0], [1.2], [1.1], [1.3], [90.0]]), faulty=1)
        tensor([1.2000])
    """
    return rows[int(krum_scores(rows, faulty).argmin())]


def multi_krum(rows: Tensor, faulty: int, count: int | None) -> Tensor:
    """Average the `count` best rows by Krum's score: rows [m, p] -> [p]. None takes all but the faulty ones.

    Blanchard et al., NeurIPS 2017, arXiv 1703.02757.

    Example:
        >>> multi_krum(torch.tensor([[1.0], [2.0], [1.5], [1.5], [90.0]]), faulty=1, count=None)
        tensor([1.5000])
    """
    count = count or max(1, len(rows) - faulty)
    return rows[krum_scores(rows, faulty).argsort(stable=True)[:count]].mean(0)


def bulyan_picked(rows: Tensor, faulty: int) -> list[int]:
    """Choose n - 2 f rows, one after another, each by Krum's score among those that are left: rows [n, p] -> indices.

    A row's score sums its squared distances to its n' - f - 2 nearest of the n' rows that are left, at least 1. The
    last row that is left has no neighbours.
    """
    remaining, picked, squares = list(range(len(rows))), list[int](), _squared_distances(rows)
    while len(picked) < max(1, len(rows) - 2 * faulty):
        best = int(_scores(squares[remaining][:, remaining], faulty).argmin())
        picked.append(remaining.pop(best))
    return picked


def bulyan(rows: Tensor, faulty: int) -> Tensor:
    """Average, by coordinate, the values nearest the median of rows that Krum picks: rows [n, p] -> [p].

    El Mhamdi et al., ICML 2018, arXiv 1802.07927: theta = n - 2 f rows are picked, and of their values the theta - 2 f
    nearest the median count. It withstands f bad rows of n >= 4 f + 3.

    Example:
        >>> bulyan(torch.tensor([[1.0], [1.0], [1.0], [2.0], [2.0], [2.0], [90.0]]), faulty=1)
        tensor([1.])
    """
    picked = rows[bulyan_picked(rows, faulty)]
    count = max(1, len(picked) - 2 * faulty)
    nearest = (picked - median(picked)).abs().argsort(dim=0, stable=True)[:count]
    return picked.gather(0, nearest).mean(0)


def geometric_median(rows: Tensor, steps: int) -> Tensor:
    """Find the point with the least sum of distances to the rows (Pillutla et al., IEEE TSP 2022, arXiv 1912.13445).

    rows: uploads of m clients [m, p]; the result is [p]. steps: steps of Weiszfeld's iteration.

    Example:
        >>> geometric_median(torch.tensor([[0.0], [0.0], [90.0]]), steps=100).round(decimals=3)
        tensor([0.])
    """
    point = rows.mean(0)
    for _ in range(steps):
        weights = 1 / (rows - point).norm(dim=1).clamp(min=1e-12)
        point = (rows * weights[:, None]).sum(0) / weights.sum()
    return point
