"""The one rule that says when a method is ahead: a rotation test of paired differences, weighted by their size.

Tables, reports, headlines, reproductions and the leaderboard use no other words. Under normal noise a family contains a
false "ahead" or "behind" in at most 5 % of tables, for any covariance between the methods: the direction of a true null
is independent of its length, so weights by length cost nothing (Westfall, Kropf and Finos, IMS Lecture Notes 47, 2004).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from math import isfinite, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from fedloom.core.text import ALPHA, MARGIN, counted
from fedloom.results.group import mean_std

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Array = npt.NDArray[np.float64]

DifferenceWord = Literal["ahead", "behind", "equivalent", "undecided", "too few seeds", "not finite"]
LEVEL = 0.95
MIN_SEEDS = 3
STEP = 1e-4  # the step of a share that is measured on 10,000 samples; in points it is 0.01
USUAL_SPREADS = (0.8, 1.5, 3.6)  # points: quartiles, over 371 committed rows, of the std of differences over seeds
SEED_STEPS = (5, 7, 10, 15, 20, 30)  # numbers of seeds that a forecast may name
_POWER = 0.8  # chance of a decision at the forecast number of seeds
_DIRECTIONS = 9_999
_STREAM = 20261126
_TOLERANCE = 1e-9  # in logarithms: equal p values of equal rows may differ in their last bits
_MAX_FLIPPED = 16  # seeds up to which all sign flips are counted
_CHECKED = 9  # seeds from which the exact tests could confirm a difference after correction


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired differences over seeds, with their tests and their verdict in words.

    - values: one for each common seed, ascending. step: smallest step of the measure. points: points in one unit of the
      values, 100 for shares. margin: of equivalence, in points; 0 calls nothing equivalent.
    - low, high: the 95 % t interval of the mean alone, uncorrected; None for one seed.
    - p: two-sided paired t test. adjusted: after correction over the `tested` of the `planned` methods of the family.
      equivalent_p: the larger p of two one-sided t tests of the margin, by Holm. None for fewer than three seeds.
    - family: "primary", "exploratory" or "added later" in a study with a plan. notes: such as "at the ceiling".
    - unplanned: the same comparison over all seeds, where there are more than planned; it changes no word."""

    values: tuple[float, ...]
    step: float
    points: float
    margin: float
    alpha: float
    family: str
    n: int
    mean: float
    low: float | None
    high: float | None
    p: float | None = None
    adjusted: float | None = None
    equivalent_p: float | None = None
    tested: int = 0
    planned: int = 0
    notes: tuple[str, ...] = ()
    unplanned: "Difference | None" = None

    @property
    def equivalent(self) -> bool:
        """Whether the difference lies within the margin, whatever else is said about it."""
        return self.equivalent_p is not None and self.equivalent_p <= self.alpha

    @property
    def word(self) -> DifferenceWord:
        """Return the only word that may be said about this difference."""
        if self.adjusted is None:
            lacking: DifferenceWord = "too few seeds" if self.n < MIN_SEEDS else "undecided"
            return lacking if all(map(isfinite, self.values)) else "not finite"
        if self.adjusted <= self.alpha:
            return "ahead" if self.mean > 0 else "behind"
        return "equivalent" if self.equivalent else "undecided"

    @property
    def needs(self) -> int | None:
        """The least number of seeds at which a difference of this mean and spread is decided with chance 0.8; None if
        30 do not suffice, or if there are fewer than three now."""
        if self.p is None or self.adjusted is None:
            return None
        from scipy.stats import nct

        level = self.alpha * self.p / self.adjusted if self.adjusted else self.alpha
        effect = abs(self.mean) / spread(self.values, self.step)
        chances = {k: nct.sf(t_quantile(1 - level / 2, k - 1), k - 1, effect * sqrt(k)) for k in SEED_STEPS}
        return next((k for k, chance in chances.items() if k > self.n and chance >= _POWER), None)

    @property
    def verdict(self) -> str:
        """Return the word with what qualifies it: "undecided (needs about 7 seeds)"."""
        margin = f"{self.margin:g} point{'' if self.margin == 1 else 's'}"
        if self.word == "undecided" and self.adjusted is None:
            return "undecided (no look taken)"
        if self.word == "undecided":
            return f"undecided (needs {f'about {self.needs}' if self.needs else 'more than 30'} seeds)"
        within = f" within ±{margin}" if self.word == "equivalent" else f", by less than {margin}"
        return self.word + (within if self.equivalent else "")

    @property
    def unplanned_text(self) -> str:
        """Return the verdict over all seeds, to follow that of the planned ones; empty if there are no more."""
        return "" if self.unplanned is None else f"; unplanned look at {self.unplanned.n}: {self.unplanned.verdict}"

    def interval_text(self, scale: float = 1.0, decimals: int = 1) -> str:
        """Return the interval times `scale`, e.g. "-0.5 to +4.5"; a dash for one seed."""
        if self.low is None or self.high is None:
            return "–"
        return f"{scale * self.low:+.{decimals}f} to {scale * self.high:+.{decimals}f}"

    def figures(self, means: str = "") -> str:
        """Return the numbers behind the word: mean, interval, seeds whose differences have the sign of the mean, and
        adjusted p. means: those of both methods, to stand behind the difference."""
        parts = [f"{self.points * self.mean:+.1f} points{f' ({means})' if means else ''}"]
        if self.low is not None:
            parts.append(f"95 % interval {self.interval_text(self.points)} (alone)")
        parts.append(f"{sum(value * self.mean > 0 for value in self.values)} of {counted(self.n, 'seed')}")
        if self.adjusted is not None:
            planned = f" of {self.planned}" if self.planned > self.tested else ""
            level = f" at level {p_text(self.alpha)}" if self.alpha != ALPHA else ""
            of = f"{self.tested}{planned}{f' {self.family}'.rstrip()}"
            parts.append(f"adjusted p {p_text(self.adjusted)} of {of}{level}")
        notes = [*self.notes]
        if self.unplanned is not None:
            notes.append(f"unplanned look: {self.unplanned.verdict}, {self.unplanned.figures()}")
        flipped = self.sign_flip_p if self.n >= _CHECKED else None
        if self.p is not None and flipped is not None and (self.p < ALPHA) != (flipped < ALPHA):
            notes.append("t test and sign-flip test disagree")
        return ", ".join(parts) + (f" ({'; '.join(notes)})" if notes else "")

    def checks_text(self) -> str:
        """Return the p of the t test alone and of the exact tests, which never decide; empty below three seeds."""
        if self.p is None:
            return ""
        flips = "" if self.sign_flip_p is None else f"sign flips {p_text(self.sign_flip_p)}, "
        return f"alone p {p_text(self.p)}; checks: {flips}signs {p_text(self.sign_p)}"

    @property
    def sign_flip_p(self) -> float | None:
        """Share of all sign flips whose sum is as far from zero as the observed one; None above 16 seeds."""
        if self.n > _MAX_FLIPPED:
            return None
        import numpy as np

        sums = np.abs(np.array(list(product((1.0, -1.0), repeat=self.n))) @ np.array(self.values))
        # Sums that are equal in exact arithmetic may differ in their last bits, and equal ones count as extreme.
        return float(np.mean(sums >= sums[0] - 1e-12 * max(1.0, sum(map(abs, self.values)))))

    @property
    def sign_p(self) -> float:
        """Two-sided p of the sign test without differences of zero."""
        from scipy.stats import binomtest

        signs = [value > 0 for value in self.values if value != 0]
        return float(binomtest(sum(signs), len(signs)).pvalue) if signs else 1.0


def p_text(p: float) -> str:
    """Return a p value with two digits and no zero before the point, ".02"."""
    return "<.001" if p < 0.001 else f"{p:.2g}".removeprefix("0")


def compare_family(
    differences: Sequence[Sequence[float]],
    step: float = STEP,
    *,
    points: float = 100.0,
    margin: float = MARGIN,
    alpha: float = ALPHA,
    absent: int = 0,
    family: str = "",
    all_pairs: bool = False,
) -> list[Difference]:
    """Judge all comparisons of one family: methods with one baseline in one setting, protocol and measure.

    Comparisons of fewer than three seeds, or with a value that is not finite, are not part of the family.

    Args:
        differences: of each comparison, one difference for each common seed, seeds ascending.
        step: the smallest step of the measure; the standard deviation counts as at least step / sqrt(12), because equal
            differences prove no certainty.
        points: points in one unit of the differences.
        margin: of equivalence, in points; 0 for measures that have none.
        alpha: chance of a false word in the family.
        absent: planned methods that diverged; they are only counted.
        family: its name.
        all_pairs: the comparisons are pairs of rows, and not rows with one baseline: weighted Holm instead of rotation.

    Example:
        >>> ahead, unclear = compare_family([[3.0, 2.6, 2.9], [2.1, 1.7, -2.6]], 0.01, points=1)
        >>> ahead.verdict, unclear.verdict
        ('ahead', 'undecided (needs more than 30 seeds)')
    """
    rows = tuple(tuple(map(float, values)) for values in differences)
    judged = []
    for values in rows:
        interval = (t_interval(values, LEVEL, step) if all(map(isfinite, values)) else None) or (None, None)
        plain = step, points, margin, alpha, family, len(values), fmean(values)
        judged.append(Difference(values, *plain, *interval))
    tested = [k for k, values in enumerate(rows) if len(values) >= MIN_SEEDS and all(map(isfinite, values))]
    if tested:
        counts = {"tested": len(tested), "planned": len(tested) + absent}
        tests = _tests(tuple(rows[k] for k in tested), step, margin / points, all_pairs)
        for k, p, adjusted, equivalent in zip(tested, *tests, strict=True):
            judged[k] = replace(judged[k], p=p, adjusted=adjusted, equivalent_p=equivalent, **counts)
    return judged


def rank_intervals(
    rows: Sequence[Mapping[int, float]], step: float = STEP, lower: bool = False
) -> list[tuple[int, int] | None]:
    """Return between which ranks each row lies: 1 + rows ahead of it, to all rows - rows behind it.

    All pairs are one family, by weighted Holm; no row is compared with the best mean as if the data had not chosen it.
    rows: values by seed. lower: whether the lowest is the best. None for a row without three seeds in common with
    another one; these are not counted."""
    pairs, differences = [], []
    for i, j in combinations(range(len(rows)), 2):
        values = [rows[i][seed] - rows[j][seed] for seed in sorted(rows[i].keys() & rows[j].keys())]
        if len(values) >= MIN_SEEDS and all(map(isfinite, values)):
            pairs.append((i, j))
            differences.append(values)
    if not pairs:
        return [None] * len(rows)
    p, weights, moments = _own(differences, step)
    ahead, behind, ranked = [0] * len(rows), [0] * len(rows), {row for pair in pairs for row in pair}
    for (i, j), corrected, mean in zip(pairs, holm(p, weights), moments[:, 1], strict=True):
        if corrected <= ALPHA:
            better, worse = (i, j) if (mean > 0) != lower else (j, i)
            ahead[worse] += 1
            behind[better] += 1
    return [(1 + ahead[k], len(ranked) - behind[k]) if k in ranked else None for k in range(len(rows))]


def best_of(ranks: Mapping[int, tuple[int, int] | None]) -> set[int]:
    """Return the rows that no row is ahead of, by their `rank_intervals`; none if that would be all."""
    firsts = {row: interval[0] == 1 for row, interval in ranks.items() if interval is not None}
    return set() if all(firsts.values()) else {row for row, is_first in firsts.items() if is_first}


def visible_effect(seeds: int, methods: int, alpha: float = ALPHA) -> float | None:
    """Return how large a mean difference, in standard deviations of the differences, is seen with chance 0.8 in a
    family of so many methods; None below three seeds. By the noncentral t distribution at alpha / methods, which is
    cautious: a method that stands out gets more of alpha."""
    if seeds < MIN_SEEDS:
        return None
    from scipy.optimize import brentq
    from scipy.stats import nct

    limit = t_quantile(1 - alpha / (2 * methods), seeds - 1)
    return float(brentq(lambda effect: nct.sf(limit, seeds - 1, effect * sqrt(seeds)) - _POWER, 0, 1e4))


@lru_cache(maxsize=256)  # a report asks for the words of one table several times
def _tests(rows: tuple[tuple[float, ...], ...], step: float, margin: float, all_pairs: bool) -> tuple[list[float], ...]:
    """Return the paired p, the adjusted p, and the adjusted p of equivalence of each row, of three seeds or more."""
    from scipy.stats import t

    p, weights, moments = _own(rows, step)
    n, mean, std = moments.T
    rotates = len(set(map(len, rows))) == 1 and not all_pairs
    adjusted = _rotation(rows, p, weights) if rotates else holm(p, weights)
    equivalent = holm(t.sf((margin - abs(mean)) * n**0.5 / std, n - 1))
    return p.tolist(), [max(pair) for pair in zip(p.tolist(), adjusted.tolist(), strict=True)], equivalent.tolist()


def _own(rows: Sequence[Sequence[float]], step: float) -> "tuple[_Array, _Array, _Array]":
    """Return the paired p of each row, its weight, and its n, mean and spread. A weight is the mean square, not
    centred: under the null it says nothing about the direction."""
    import numpy as np
    from scipy.special import betainc

    floor = max(step, 1e-12)  # a measure without steps
    moments = np.array([(len(row), np.mean(row), max(np.std(row, ddof=1), floor / sqrt(12))) for row in rows])
    n, mean, std = moments.T
    square, degrees = n * (mean / std) ** 2, n - 1
    weights = np.array([np.mean(np.square(row)) for row in rows]) + floor**2 / 12
    return betainc(degrees / 2, 0.5, degrees / (degrees + square)), weights, moments


def _rotation(rows: Sequence[Sequence[float]], p: "_Array", weights: "_Array") -> "_Array":
    """Adjust p step down, by the least p / weight that random directions give the rows not yet decided. One direction
    turns all rows alike, so the rows keep their joint law."""
    import numpy as np
    from scipy.special import betainc

    differences = np.array(rows)
    n = differences.shape[1]
    scaled = differences / np.sqrt(n * weights)[:, None]
    cosines = np.minimum(np.abs(_directions(n) @ scaled.T), 1.0)
    with np.errstate(divide="ignore"):  # p of an enormous difference may be 0
        null = np.log(betainc((n - 1) / 2, 0.5, 1 - cosines**2)) - np.log(weights)
        observed = np.log(p) - np.log(weights)
    order = np.argsort(observed, kind="stable")
    # For each position the least value of it and of all later ones.
    least = np.minimum.accumulate(null[:, order[::-1]], axis=1)[:, ::-1]
    shares = (1 + np.count_nonzero(least <= observed[order] + _TOLERANCE, axis=0)) / (_DIRECTIONS + 1)
    adjusted: _Array = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(shares)
    return adjusted


@lru_cache(maxsize=16)
def _directions(n: int) -> "_Array":
    """Uniform directions in n dimensions, from NumPy's frozen legacy stream: the same on all machines and versions."""
    import numpy as np

    drawn: _Array = np.random.RandomState(_STREAM).standard_normal((_DIRECTIONS, n))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


def holm(p: Any, weights: Any = 1.0) -> "_Array":
    """Correct p values by Holm's step-down procedure, with weights of any sum."""
    import numpy as np

    p = np.asarray(p, dtype=np.float64)
    weights = np.broadcast_to(np.asarray(weights, dtype=np.float64), p.shape)
    order = np.argsort(p / weights, kind="stable")
    remaining = np.cumsum(weights[order][::-1])[::-1]
    corrected: _Array = np.empty_like(p)
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, p[order] / weights[order] * remaining))
    return corrected


def t_interval(values: Sequence[float], level: float = LEVEL, step: float = STEP) -> tuple[float, float] | None:
    """Return the two-sided t interval of a mean over seeds; None for a single value. level: its coverage, in (0, 1).
    step: smallest step of the values, which bounds their standard deviation from below (`spread`)."""
    if len(values) < 2:
        return None
    half = t_quantile((1 + level) / 2, len(values) - 1) * spread(values, step) / sqrt(len(values))
    mean = fmean(values)
    return mean - half, mean + half


def spread(values: Sequence[float], step: float) -> float:
    """Return the sample standard deviation, at least step / sqrt(12); of two values or more."""
    _, std = mean_std(values)
    return max(std or 0.0, step / sqrt(12))


def t_quantile(share: float, degrees: float) -> float:
    """Return the quantile of Student's t distribution. share: probability below it. degrees: degrees of freedom."""
    from scipy.special import stdtrit  # the bits of scipy.stats.t.ppf; importing scipy.stats takes half a second

    return float(stdtrit(degrees, share))


def paired_differences(
    seeds: Sequence[int], values: Sequence[float], other_seeds: Sequence[int], other_values: Sequence[float]
) -> dict[int, float]:
    """Subtract the other row's values from the first row's: by common seed, ascending. Values are in the order of their
    row's seeds."""
    ours, theirs = (dict(zip(*row, strict=True)) for row in ((seeds, values), (other_seeds, other_values)))
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}
