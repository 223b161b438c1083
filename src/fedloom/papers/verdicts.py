"""Judge measured values by the printed ones, claiming no more than the seeds allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from math import atanh, sqrt, tanh
from statistics import correlation, fmean
from typing import TYPE_CHECKING, Literal

from fedloom._renamed import missing_attribute
from fedloom.results.difference import LEVEL, t_interval
from fedloom.results.text import counted

VerdictWord = Literal["reproduced", "near", "order reproduced", "not reproduced", "not comparable"]
NEAR = 1.0  # points
NOT_RUN = "not run"
_MIN_METHODS = 5  # of four methods, one order in 24 is the printed one by chance
_MAX_COUNTED = 7  # with more methods the interval is near enough, and their orders are too many to count


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word, and what it rests on."""

    word: VerdictWord
    why: str


def judge_value(
    ours: Sequence[float],
    theirs: float | None,
    *,
    near: float | None = NEAR,
    missed: int = 0,
    reason: str | None = None,
) -> Verdict:
    """Compare our values with the printed one.

    - ours: one value for each seed, in the unit of `theirs`.
    - theirs: the printed value, None if the paper prints none.
    - near: the largest distance that counts as near; None if this measure has no such verdict.
    - missed: seeds that never had the value, e.g. a target accuracy that they did not reach. One such seed leaves no
      mean to compare.
    - reason: why the values cannot be compared, whatever they are.

    "reproduced" needs two seeds: theirs lies inside the 95 % t interval of our mean.

    Example:
        >>> judge_value([66.0, 66.8, 66.4], 66.2).word
        'reproduced'
        >>> judge_value([65.5], 66.2)
        Verdict(word='near', why='-0.70; one seed, so no interval')
    """
    if reason is not None:
        return Verdict("not comparable", reason)
    if theirs is None:
        return Verdict("not comparable", "nothing is printed")
    if missed:
        return Verdict("not reproduced", f"{missed} of {counted(missed + len(ours), 'seed')} did not get there")
    if not ours:
        return Verdict("not comparable", NOT_RUN)
    mean, bounds = fmean(ours), t_interval(ours, step=0.0)
    difference = f"{mean - theirs:+.2f}"
    if bounds is not None and bounds[0] <= theirs <= bounds[1]:
        seeds = counted(len(ours), "seed")
        return Verdict("reproduced", f"{difference}, inside {bounds[0]:.2f} to {bounds[1]:.2f} ({seeds})")
    spread = "one seed, so no interval" if bounds is None else f"interval {bounds[0]:.2f} to {bounds[1]:.2f}"
    if near is not None and abs(mean - theirs) <= near:
        return Verdict("near", f"{difference}; {spread}")
    return Verdict("not reproduced", f"{difference}; {spread}")


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Spearman's rank correlation `rho` of n methods, ours with theirs.

    low, high: its 95 % interval; None for fewer than five methods. chance: the share of all n! orders that agree as
    well or better; None where they were not counted.
    """

    n: int
    rho: float
    low: float | None
    high: float | None
    chance: float | None

    @property
    def enough(self) -> bool:
        """Whether there are enough methods to tell an order from chance."""
        return self.n >= _MIN_METHODS


def rank_agreement(ours: Sequence[float], theirs: Sequence[float]) -> RankAgreement | None:
    """Measure how far two orders of the same methods agree.

    Returns None for fewer than two methods, or where all values tie.

    The 95 % interval is Fisher's, with the standard error sqrt(1.06 / (n - 3)) of Fieller, Hartley and Pearson (1957).
    A correlation of 1 counts as half a step of its scale below 1, because its transform is not finite. The interval is
    too narrow for five and six methods, so up to seven all orders are counted too, equal values with their mean rank.

    Example:
        >>> rank_agreement([48.3, 55.0, 50.5, 66.2, 39.2], [43.5, 50.2, 46.1, 49.0, 44.1]).rho
        0.8
    """
    n = len(ours)
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return None
    from scipy.stats import norm, rankdata  # brings numpy

    our_ranks, their_ranks = (tuple(float(rank) for rank in rankdata(values)) for values in (ours, theirs))
    rho = correlation(our_ranks, their_ranks)
    if n < _MIN_METHODS:
        return RankAgreement(n, rho, None, None, None)
    largest = 1 - 6 / (n * (n * n - 1))
    middle = atanh(max(-largest, min(largest, rho)))
    half_width = float(norm.ppf((1 + LEVEL) / 2)) * sqrt(1.06 / (n - 3))
    chance = _chance(our_ranks, their_ranks) if n <= _MAX_COUNTED else None
    return RankAgreement(n, rho, tanh(middle - half_width), tanh(middle + half_width), chance)


def _chance(our_ranks: Sequence[float], their_ranks: Sequence[float]) -> float:
    """The share of all orders of our ranks that agree with theirs as well or better: an exact one-sided p.

    The sum of products grows with the correlation, and is exact: ranks are whole or half numbers.
    """

    def agreement(ranks: Sequence[float]) -> float:
        return sum(a * b for a, b in zip(ranks, their_ranks, strict=True))

    observed = agreement(our_ranks)
    as_good = [agreement(ranks) >= observed for ranks in permutations(our_ranks)]
    return sum(as_good) / len(as_good)


def judge_order(agreement: RankAgreement | None, reason: str | None = None) -> Verdict:
    """Judge the order of methods. reason: why orders cannot be compared, whatever the agreement is.

    "order reproduced" needs an interval of the rank correlation above zero. Where all orders were counted, at most
    2.5 % of them may also agree as well.
    """
    if reason is not None:
        return Verdict("not comparable", reason)
    if agreement is None:
        return Verdict("not comparable", "fewer than two methods, or all alike")
    why, methods = f"rank correlation {agreement.rho:.2f}", counted(agreement.n, "method")
    if agreement.low is None or agreement.high is None:
        return Verdict("not comparable", f"{why}; {methods}: too few to tell an order from chance")
    why += f", {agreement.low:.2f} to {agreement.high:.2f}, {methods}"
    if agreement.chance is not None:
        why += f"; {100 * agreement.chance:.1f} % of all orders agree as well"
    above_chance = agreement.low > 0 and (agreement.chance is None or agreement.chance <= (1 - LEVEL) / 2)
    return Verdict("order reproduced" if above_chance else "not reproduced", why)


if not TYPE_CHECKING:  # a type checker shall know that other names do not exist

    def __getattr__(name: str) -> object:
        raise missing_attribute(__name__, name)
