"""FedMA's Dirichlet cut, many draws at a time: whoever holds its fair share already gets no more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedloom.data.partitions.dealing import Shares
from fedloom.data.views import Indices

Accept = Callable[[Shares, Indices], NDArray[np.bool_]]
"""(shares [B, P, C], sizes [B, P, C]) -> which of the B draws are good [B]."""

_AT_ONCE = 1 << 17  # numbers drawn together


@dataclass(frozen=True, slots=True)
class BalancedCut:
    """Accepted draw: shares [P, C] (columns sum to 1), sizes [P, C] (columns sum to n_c), how many draws it took."""

    shares: Shares
    sizes: Indices
    draws: int


def balanced_cut(
    counts: Indices, parts: int, alpha: float, accept: Accept, max_draws: int, rng: np.random.Generator
) -> BalancedCut | None:
    """Cut classes of sizes `counts` [C] into `parts` until `accept`; None if none of `max_draws` draws is good.

    Class by class, shares over parts are Dirichlet(alpha, ..., alpha); a part that holds n / P samples or more gets
    none of the next class; the others' shares are scaled to sum to 1.
    """
    batch = int(np.clip(_AT_ONCE // (parts * len(counts)), 1, 512))
    drawn = 0
    while drawn < max_draws:
        draws = min(batch, max_draws - drawn)
        shares, sizes = _draw(counts, parts, alpha, draws, rng)
        accepted = np.flatnonzero(accept(shares, sizes))
        if len(accepted):
            first_accepted = int(accepted[0])
            return BalancedCut(shares[first_accepted], sizes[first_accepted], drawn + first_accepted + 1)
        drawn += draws
    return None


def _draw(counts: Indices, parts: int, alpha: float, draws: int, rng: np.random.Generator) -> tuple[Shares, Indices]:
    shares = np.empty((draws, parts, len(counts)))
    sizes = np.empty((draws, parts, len(counts)), np.int64)
    held_counts = np.zeros((draws, parts), np.int64)
    for label, count in enumerate(counts):
        weights = rng.dirichlet(np.full(parts, alpha), size=draws)
        is_open = held_counts * parts < counts.sum()
        weights = np.where(is_open, weights, 0.0)
        is_degenerate = weights.sum(1) == 0  # no open part has a weight that float64 can hold: equal parts
        weights[is_degenerate] = np.where(is_open[is_degenerate].any(1, keepdims=True), is_open[is_degenerate], True)
        shares[:, :, label] = weights / weights.sum(1, keepdims=True)
        edges = (np.cumsum(shares[:, :, label], axis=1) * count).astype(np.int64)
        edges[:, -1] = count
        sizes[:, :, label] = np.diff(np.minimum(edges, count), axis=1, prepend=0)
        held_counts += sizes[:, :, label]
    return shares, sizes
