"""Judge the order of a column's rows by the printed one: pair by pair, and as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from statistics import correlation
from typing import Literal

from fedloom.core.text import counted
from fedloom.papers.verdicts import MARGIN, STEP, Verdict
from fedloom.results.difference import LEVEL, compare_family

PairWord = Literal["agrees", "contradicts", "undecided"]
_MIN_ROWS = 5  # of four rows, one order in 24 is the printed one by chance
_MAX_COUNTED = 8  # of more rows the orders are too many to count


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Spearman's rank correlation `rho` of n rows, ours with theirs.

    chance: the share of all n! orders that agree as well or better: counted up to eight rows (equal values with their
    mean rank), by Student's approximation above. None for fewer than five rows.
    """

    n: int
    rho: float
    chance: float | None


@dataclass(frozen=True, slots=True)
class RankedRow:
    """A row's printed value, and ours by seed."""

    theirs: float
    ours: Mapping[int, float]


def rank_agreement(ours: Sequence[float], theirs: Sequence[float]) -> RankAgreement | None:
    """Measure how far two orders of the same rows agree; None for fewer than two rows, or where all values tie.

    Example:
        >>> rank_agreement([48.3, 55.0, 50.5, 66.2, 39.2], [43.5, 50.2, 46.1, 49.0, 44.1]).rho
        0.8
    """
    n = len(ours)
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return None
    from scipy.stats import rankdata, spearmanr  # imports numpy

    our_ranks, their_ranks = (tuple(float(rank) for rank in rankdata(values)) for values in (ours, theirs))
    rho = correlation(our_ranks, their_ranks)
    if n < _MIN_ROWS:
        return RankAgreement(n, rho, None)
    if n > _MAX_COUNTED:
        return RankAgreement(n, rho, float(spearmanr(our_ranks, their_ranks, alternative="greater").pvalue))
    return RankAgreement(n, rho, _chance(our_ranks, their_ranks))


def _chance(our_ranks: Sequence[float], their_ranks: Sequence[float]) -> float:
    """Return the share of all orders of our ranks that agree with theirs as well or better: an exact one-sided p.

    The sum of products grows with the correlation, and is exact: ranks are whole or half numbers.
    """
    import numpy as np

    agreement = np.array(list(permutations(our_ranks))) @ np.array(their_ranks)
    return float(np.mean(agreement >= agreement[0]))


def judge_pairs(
    rows: Mapping[str, RankedRow], margin: float = MARGIN, step: float = STEP
) -> dict[tuple[str, str], PairWord]:
    """Judge every pair of rows that is printed at least `margin` apart, all pairs as one family.

    A pair agrees if ours is seen to be apart in the printed direction, contradicts in the other one, and is undecided
    otherwise, also with fewer than three common seeds.
    """
    pairs = []
    for first, second in combinations(rows, 2):
        apart = rows[first].theirs - rows[second].theirs
        # Printed values have decimals, whose differences are not exact in binary.
        if abs(apart) >= margin - 1e-9:
            pairs.append((first, second) if apart > 0 else (second, first))
    differences = []
    for higher, lower in pairs:
        ours, others = rows[higher].ours, rows[lower].ours
        differences.append([ours[seed] - others[seed] for seed in sorted(ours.keys() & others.keys())])
    words: dict[tuple[str, str], PairWord] = dict.fromkeys(pairs, "undecided")
    compared = [(pair, values) for pair, values in zip(pairs, differences, strict=True) if values]
    outcomes = compare_family([values for _, values in compared], step)
    for (pair, _), outcome in zip(compared, outcomes, strict=True):
        if outcome.word in ("ahead", "behind"):
            words[pair] = "agrees" if outcome.word == "ahead" else "contradicts"
    return words


def judge_order(agreement: RankAgreement | None, pairs: Sequence[PairWord], reason: str | None = None) -> Verdict:
    """Judge the order of rows.

    "order differs" if a pair contradicts. "order reproduced" if none does, at least half of the pairs agree, and at
    most 2.5 % of all orders correlate as well. "undecided" otherwise, and for fewer than five rows.

    Args:
        agreement: rank correlation of ours and theirs; None for too few rows.
        pairs: the verdict on each pair of rows.
        reason: why orders cannot be compared, whatever the agreement is.
    """
    if reason is not None:
        return Verdict("not comparable", reason)
    if agreement is None:
        return Verdict("not comparable", "fewer than two rows, or all alike")
    agree, contradict, undecided = (pairs.count(word) for word in ("agrees", "contradicts", "undecided"))
    counts = f"{counted(len(pairs), 'pair')}: {agree} agree, {contradict} contradict, {undecided} undecided"
    why = f"{counts}; rank correlation {agreement.rho:.2f}, {counted(agreement.n, 'row')}"
    if agreement.chance is None:
        return Verdict("undecided", f"{why}: too few to tell an order from chance")
    why += f"; {100 * agreement.chance:.1f} % of all orders agree as well"
    if contradict:
        return Verdict("order differs", why)
    reproduced = pairs and 2 * agree >= len(pairs) and agreement.chance <= (1 - LEVEL) / 2
    return Verdict("order reproduced" if reproduced else "undecided", why)
