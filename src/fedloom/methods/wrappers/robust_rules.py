"""Rules that reduce the vectors of several clients to one that a few bad ones cannot move far."""

import torch
from torch import Tensor


def median(rows: Tensor) -> Tensor:
    """Return the median of each coordinate of rows [m, p]. Yin et al., ICML 2018, arXiv 1803.01498."""
    ordered = rows.sort(0).values
    return (ordered[(len(rows) - 1) // 2] + ordered[len(rows) // 2]) / 2


def trimmed_mean(rows: Tensor, share: float) -> Tensor:
    """Return the mean of rows [m, p] by coordinate, without a `share` at each end. Yin et al., arXiv 1803.01498."""
    dropped = trimmed_rows(len(rows), share)
    return rows.sort(0).values[dropped : len(rows) - dropped].mean(0)


def trimmed_rows(count: int, share: float) -> int:
    """Return how many of `count` rows a trimmed mean leaves out at each end."""
    return int(share * count + 1e-9)


def krum_scores(rows: Tensor, faulty: int) -> Tensor:
    """Sum the squared distances of each row to its m - f - 2 nearest neighbours: rows [m, p] -> [m]."""
    return _scores(_squared_distances(rows), faulty)


def _squared_distances(rows: Tensor) -> Tensor:
    return torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()


def _scores(squares: Tensor, faulty: int) -> Tensor:
    # column 0 is the row's distance to itself; m - f - 2 neighbours follow
    return squares.sort(1).values[:, 1 : max(2, len(squares) - faulty - 1)].sum(1)


def krum(rows: Tensor, faulty: int) -> Tensor:
    """Return the row of rows [m, p] that is nearest to its neighbours. Blanchard et al., NeurIPS 2017, arXiv
    1703.02757.

    Example:
        >>> krum(torch.tensor([[1.0], [1.2], [1.1], [1.3], [90.0]]), faulty=1)
        tensor([1.2000])
    """
    return rows[int(krum_scores(rows, faulty).argmin())]


def multi_krum(rows: Tensor, faulty: int, kept: int | None) -> Tensor:
    """Average the `kept` (None: all but `faulty`) best of rows [m, p] by Krum's score. Blanchard et al. 2017."""
    kept = kept or max(1, len(rows) - faulty)
    return rows[krum_scores(rows, faulty).argsort(stable=True)[:kept]].mean(0)


def bulyan_picked(rows: Tensor, faulty: int) -> list[int]:
    """Choose n - 2 f of the rows [n, p], one after another, each by Krum's score among the remaining ones."""
    remaining, picked, squares = list(range(len(rows))), list[int](), _squared_distances(rows)
    while len(picked) < max(1, len(rows) - 2 * faulty):
        best = int(_scores(squares[remaining][:, remaining], faulty).argmin())
        picked.append(remaining.pop(best))
    return picked


def bulyan(rows: Tensor, faulty: int) -> Tensor:
    """Average, by coordinate, the theta - 2 f values nearest the median of the theta = n - 2 f rows [n, p] that Krum
    picks. It withstands f bad rows of n >= 4 f + 3. El Mhamdi et al., ICML 2018, arXiv 1802.07927."""
    picked = rows[bulyan_picked(rows, faulty)]
    count = max(1, len(picked) - 2 * faulty)
    nearest = (picked - median(picked)).abs().argsort(dim=0, stable=True)[:count]
    return picked.gather(0, nearest).mean(0)


def geometric_median(rows: Tensor, steps: int) -> Tensor:
    """Return the point nearest to rows [m, p] in sum, by `steps` of Weiszfeld. Pillutla et al., arXiv 1912.13445."""
    point = rows.mean(0)
    for _ in range(steps):
        # a point that lies on a row would weigh it infinitely
        weights = 1 / (rows - point).norm(dim=1).clamp(min=1e-12)
        point = (rows * weights[:, None]).sum(0) / weights.sum()
    return point
