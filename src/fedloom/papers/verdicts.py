"""Ours beside theirs: what a comparison with a printed value may say, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import atanh, sqrt, tanh
from statistics import correlation, fmean
from typing import Literal

from fedloom.study.paired import LEVEL, interval
from fedloom.study.text import counted

Word = Literal["reproduced", "near", "order reproduced", "not reproduced", "not comparable"]
NEAR = 1.0  # points
NOT_RUN = "not run"
_FEWEST = 5  # methods: of four, one order in 24 is the printed one by chance
_COUNTED = 7  # methods whose orders are all counted; of more, the interval is near enough


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word, and what it rests on."""

    word: Word
    why: str


def judged(
    ours: Sequence[float],
    theirs: float | None,
    *,
    near: float | None = NEAR,
    missed: int = 0,
    reason: str | None = None,
) -> Verdict:
    """Compare our values, one a seed, with the printed one, in the same unit.

    reproduced: theirs lies inside the 95 % t interval of our mean, for which it takes two seeds. near: our mean is
    within `near` (None: no such word for this measure). missed: seeds that never had the value, as a target that they
    did not reach; then there is no mean to compare. reason: why they cannot be compared at all.
    """
    if reason is not None:
        return Verdict("not comparable", reason)
    if theirs is None:
        return Verdict("not comparable", "nothing is printed")
    if missed:
        return Verdict("not reproduced", f"{missed} of {counted(missed + len(ours), 'seed')} did not get there")
    if not ours:
        return Verdict("not comparable", NOT_RUN)
    mean, inside = fmean(ours), interval(ours)
    away = f"{mean - theirs:+.2f}"
    if inside is not None and inside[0] <= theirs <= inside[1]:
        return Verdict(
            "reproduced", f"{away}, inside {inside[0]:.2f} to {inside[1]:.2f} ({counted(len(ours), 'seed')})"
        )
    seeds = "one seed, so no interval" if inside is None else f"interval {inside[0]:.2f} to {inside[1]:.2f}"
    if near is not None and abs(mean - theirs) <= near:
        return Verdict("near", f"{away}; {seeds}")
    return Verdict("not reproduced", f"{away}; {seeds}")


@dataclass(frozen=True, slots=True)
class Order:
    """Spearman's rank correlation of n methods, ours with theirs. low, high: its interval, None for fewer than five
    methods. chance: the share of all n! orders that agree as well or better, None where they were not counted."""

    n: int
    rho: float
    low: float | None
    high: float | None
    chance: float | None

    @property
    def enough(self) -> bool:
        """Whether there are enough methods to tell an order from chance."""
        return self.n >= _FEWEST


def order(ours: Sequence[float], theirs: Sequence[float]) -> Order | None:
    """How far two orders of the same methods agree; None for fewer than two methods, or where all values tie.

    The 95 % interval is Fisher's, with the standard error sqrt(1.06 / (n - 3)) of Fieller, Hartley and Pearson (1957).
    A correlation of 1 counts as half a step of its scale below 1, for its transform is not finite. This interval is too
    narrow for five and six methods, so up to seven all orders are counted too, equal values with their mean rank.
    """
    n = len(ours)
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return None
    from scipy.stats import norm, rankdata  # brings numpy

    mine, printed = (tuple(float(rank) for rank in rankdata(values)) for values in (ours, theirs))
    rho = correlation(mine, printed)
    if n < _FEWEST:
        return Order(n, rho, None, None, None)
    most = 1 - 6 / (n * (n * n - 1))
    middle = atanh(max(-most, min(most, rho)))
    half = float(norm.ppf((1 + LEVEL) / 2)) * sqrt(1.06 / (n - 3))
    chance = _chance(mine, printed) if n <= _COUNTED else None
    return Order(n, rho, tanh(middle - half), tanh(middle + half), chance)


def _chance(mine: Sequence[float], printed: Sequence[float]) -> float:
    """The share of all orders of `mine` that agree with `printed` as well as it does, or better: an exact one-sided p.

    The sum of products grows with the correlation, and is exact: ranks are whole or half numbers.
    """

    def agreement(ranks: Sequence[float]) -> float:
        return sum(a * b for a, b in zip(ranks, printed, strict=True))

    least = agreement(mine)
    found = [agreement(ranks) >= least for ranks in permutations(mine)]
    return sum(found) / len(found)


def order_judged(found: Order | None, reason: str | None = None) -> Verdict:
    """order reproduced: the interval of the rank correlation lies above zero, and so good an order comes by chance in
    2.5 % of cases at most, where that was counted."""
    if reason is not None:
        return Verdict("not comparable", reason)
    if found is None:
        return Verdict("not comparable", "fewer than two methods, or all alike")
    told, methods = f"rank correlation {found.rho:.2f}", counted(found.n, "method")
    if found.low is None or found.high is None:
        return Verdict("not comparable", f"{told}; {methods}: too few to tell an order from chance")
    told += f", {found.low:.2f} to {found.high:.2f}, {methods}"
    if found.chance is not None:
        told += f"; {100 * found.chance:.1f} % of all orders agree as well"
    seen = found.low > 0 and (found.chance is None or found.chance <= (1 - LEVEL) / 2)
    return Verdict("order reproduced" if seen else "not reproduced", told)
