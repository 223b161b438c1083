"""Judge measured values, and the order of a column's rows, by the printed ones. A value is judged by equivalence with a
stated margin, which noise cannot pass; an order pair by pair, and as a whole."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from math import sqrt
from statistics import correlation, fmean
from typing import Literal

from fedloom.core.text import counted
from fedloom.results.difference import LEVEL, MIN_SEEDS, compare_family, spread, t_quantile

VerdictWord = Literal["reproduced", "differs", "undecided", "not comparable", "order reproduced", "order differs"]
Interval = tuple[float, float]
MARGIN = 1.0  # points
STEP = 0.01  # points, of 10,000 test samples
NOT_RUN = "not run"
_ONE_SIDED = 0.9  # the interval of two one-sided tests at 5 %
_MAX_SEEDS = 20


@dataclass(frozen=True, slots=True)
class Verdict:
    """One word and the evidence for it."""

    word: VerdictWord
    why: str


@dataclass(frozen=True, slots=True)
class Equivalence:
    """The difference of our mean from the printed value, in the unit of the measure, and the margin.
    - narrow, wide: its 90 and 95 % intervals, with `degrees` degrees of freedom.
    - needed, needed_to_differ: seeds that would decide at this mean and spread; None if twenty do not suffice."""

    n: int
    difference: float
    margin: float
    degrees: float
    narrow: Interval
    wide: Interval
    needed: int | None
    needed_to_differ: int | None

    @property
    def word(self) -> VerdictWord:
        """Return "reproduced" if the 90 % interval lies within the margin, "differs" if the 95 % one lies outside."""
        if -self.margin < self.narrow[0] and self.narrow[1] < self.margin:
            return "reproduced"
        return "differs" if self.wide[0] > self.margin or self.wide[1] < -self.margin else "undecided"

    @property
    def why(self) -> str:
        """Return the difference, the interval that decides, and what would decide."""
        difference, seeds = f"{self.difference:+.2f}", counted(self.n, "seed")
        narrow, wide = (f"interval {low:+.2f} to {high:+.2f}" for low, high in (self.narrow, self.wide))
        match self.word:
            case "reproduced":
                return f"{difference}, 90 % {narrow} within ±{self.margin:g} ({seeds})"
            case "differs":
                return f"{difference}, 95 % {wide} outside ±{self.margin:g} ({seeds})"
        # At most one of them exists: the difference is smaller than the margin, or larger.
        needed = self.needed or self.needed_to_differ
        decides = f"{needed} seeds" if needed else f"not within {_MAX_SEEDS} seeds"
        return f"{difference}, 90 % {narrow} ({seeds}); would decide at this mean and spread: {decides}"


def equivalence(
    ours: Sequence[float],
    theirs: float,
    *,
    margin: float = MARGIN,
    step: float = STEP,
    theirs_std: float | None = None,
    theirs_runs: int | None = None,
) -> Equivalence | None:
    """Compare at least three of our values, one for each seed, with the printed one (`theirs`); None for fewer.
    margin: the largest difference that counts as none. step: the measure's smallest step. theirs_std: the printed
    sample standard deviation; it counts only with `theirs_runs`, the number of runs that it is over (Welch)."""
    if len(ours) < MIN_SEEDS:
        return None
    difference, variance = fmean(ours) - theirs, spread(ours, step) ** 2
    printed = theirs_std**2 / theirs_runs if theirs_std is not None and theirs_runs and theirs_runs > 1 else 0.0

    def error_and_degrees(n: int) -> tuple[float, float]:
        total = variance / n + printed
        if not total:
            return 0.0, n - 1
        # Welch-Satterthwaite: the printed spread has its own degrees of freedom.
        squares = (variance / n) ** 2 / (n - 1) + (printed**2 / (theirs_runs - 1) if printed and theirs_runs else 0.0)
        return sqrt(total), total**2 / squares

    def half_width(n: int, level: float) -> float:
        error, degrees = error_and_degrees(n)
        return t_quantile((1 + level) / 2, degrees) * error

    n = len(ours)
    widths = half_width(n, _ONE_SIDED), half_width(n, LEVEL)
    narrow, wide = ((difference - width, difference + width) for width in widths)
    needed = _seeds(lambda seeds: half_width(seeds, _ONE_SIDED) < margin - abs(difference))
    needed_to_differ = _seeds(lambda seeds: half_width(seeds, LEVEL) < abs(difference) - margin)
    degrees = error_and_degrees(n)[1]
    return Equivalence(n, difference, margin, degrees, narrow, wide, needed, needed_to_differ)


def _seeds(enough: Callable[[int], bool]) -> int | None:
    # Tried one by one: n sets both the error and the degrees of freedom of the t quantile.
    return next((n for n in range(MIN_SEEDS, _MAX_SEEDS + 1) if enough(n)), None)


def judge_value(
    ours: Sequence[float],
    theirs: float | None,
    *,
    margin: float = MARGIN,
    step: float = STEP,
    theirs_std: float | None = None,
    theirs_runs: int | None = None,
    missed: int = 0,
    reason: str | None = None,
) -> Verdict:
    """Compare our values with the printed one. Fewer than three seeds decide nothing.

    ours: one value for each seed, in the unit of `theirs`. theirs: the printed value; None if the paper prints none.
    margin, step, theirs_std, theirs_runs: as for `equivalence`. missed: seeds without a value, because they never
    reached the target accuracy; then there is no mean. reason: why the values cannot be compared at all.

    Example:
        >>> judge_value([70.1, 69.8, 70.3], 70.0).word
        'reproduced'
    """
    if reason is not None:
        difference = f"; {fmean(ours) - theirs:+.2f}" if ours and theirs is not None and not missed else ""
        return Verdict("not comparable", f"{reason}{difference}")
    if theirs is None:
        return Verdict("not comparable", "nothing is printed")
    seeds = len(ours) + missed
    if not seeds:
        return Verdict("not comparable", NOT_RUN)
    if missed:
        # Seeds that never reach the target have no number to average, but all of them failing is an answer.
        decided = missed == seeds >= MIN_SEEDS
        return Verdict("differs" if decided else "undecided", f"{missed} of {counted(seeds, 'seed')} did not get there")
    judged = equivalence(ours, theirs, margin=margin, step=step, theirs_std=theirs_std, theirs_runs=theirs_runs)
    uncounted = "; their spread is not counted" if theirs_std is not None and not theirs_runs else ""
    if judged is None:
        return Verdict("undecided", f"{fmean(ours) - theirs:+.2f}; fewer than {MIN_SEEDS} seeds")
    return Verdict(judged.word, judged.why + uncounted)


PairWord = Literal["agrees", "contradicts", "undecided"]
_MIN_ROWS = 5  # of four rows, one order in 24 is the printed one by chance
_MAX_COUNTED = 8  # of more rows the orders are too many to count


@dataclass(frozen=True, slots=True)
class RankAgreement:
    """Spearman's rank correlation `rho` of n rows, ours with theirs.
    chance: the share of all n! orders that agree as well or better: counted up to eight rows (equal values with their
    mean rank), by Student's approximation above. None for fewer than five rows."""

    n: int
    rho: float
    chance: float | None


RankedRow = tuple[float, Mapping[int, float]]  # a row's printed value, and ours by seed


def rank_agreement(ours: Sequence[float], theirs: Sequence[float]) -> RankAgreement | None:
    """Measure how far two orders of the same rows agree; None for fewer than two rows, or where all values tie.

    Example:
        >>> rank_agreement([48.3, 55.0, 50.5, 66.2, 39.2], [43.5, 50.2, 46.1, 49.0, 44.1]).rho
        0.8
    """
    n = len(ours)
    if len(set(ours)) < 2 or len(set(theirs)) < 2:
        return None
    import numpy as np
    from scipy.stats import rankdata, spearmanr

    our_ranks, their_ranks = (tuple(float(rank) for rank in rankdata(values)) for values in (ours, theirs))
    rho = correlation(our_ranks, their_ranks)
    if n < _MIN_ROWS:
        return RankAgreement(n, rho, None)
    if n > _MAX_COUNTED:
        return RankAgreement(n, rho, float(spearmanr(our_ranks, their_ranks, alternative="greater").pvalue))
    # An exact one-sided p: the sum of products grows with the correlation, and ranks are whole or half numbers.
    agreement = np.array(list(permutations(our_ranks))) @ np.array(their_ranks)
    return RankAgreement(n, rho, float(np.mean(agreement >= agreement[0])))


def judge_pairs(
    rows: Mapping[str, RankedRow], margin: float = MARGIN, step: float = STEP
) -> dict[tuple[str, str], PairWord]:
    """Judge every pair of rows that is printed at least `margin` apart, all pairs as one family: it agrees if ours is
    seen to be apart in the printed direction, contradicts in the other one, and else is undecided."""
    pairs = []
    for first, second in combinations(rows, 2):
        apart = rows[first][0] - rows[second][0]
        # Printed values have decimals, whose differences are not exact in binary.
        if abs(apart) >= margin - 1e-9:
            pairs.append((first, second) if apart > 0 else (second, first))
    differences = []
    for higher, lower in pairs:
        (_, ours), (_, others) = rows[higher], rows[lower]
        differences.append([ours[seed] - others[seed] for seed in sorted(ours.keys() & others.keys())])
    words: dict[tuple[str, str], PairWord] = dict.fromkeys(pairs, "undecided")
    compared = [(pair, values) for pair, values in zip(pairs, differences, strict=True) if values]
    outcomes = compare_family([values for _, values in compared], step, points=1.0, all_pairs=True)
    for (pair, _), outcome in zip(compared, outcomes, strict=True):
        if outcome.word in ("ahead", "behind"):
            words[pair] = "agrees" if outcome.word == "ahead" else "contradicts"
    return words


def judge_order(agreement: RankAgreement | None, pairs: Sequence[PairWord], reason: str | None = None) -> Verdict:
    """Judge the order of rows.
    "order differs" if a pair contradicts. "order reproduced" if none does, at least half of the pairs agree, and at
    most 2.5 % of all orders correlate as well. "undecided" otherwise, and for fewer than five rows.
    agreement: rank correlation of ours and theirs; None for too few rows. pairs: the verdict on each pair of rows.
    reason: why orders cannot be compared, whatever the agreement is."""
    if reason is not None:
        return Verdict("not comparable", reason)
    if agreement is None:
        return Verdict("not comparable", "fewer than two rows, or all of them equal")
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
