"""The one rule that says whether two rows differ: paired differences by seed, Student's t, Holm's correction.

Tables, reports, headlines, reproductions and the leaderboard use no other rule, and no other words. Seed by seed, the
seeds' common effect cancels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import sqrt
from statistics import fmean
from typing import Literal

from fedloom.core.errors import ConfigError
from fedloom.core.text import counted
from fedloom.results.comparability import (
    comparable,
    context_numbers,
    different_keys,
    different_settings,
    run_identity,
    same_runs,
)
from fedloom.results.group import ResultRow, mean_std

DifferenceWord = Literal["ahead", "behind", "no difference seen", "too few seeds"]
LEVEL = 0.95
MIN_SEEDS = 3
STEP = 1e-4  # the step of a share that is measured on 10,000 samples; in points it is 0.01
_MAX_FLIPPED = 16  # seeds up to which all sign flips are counted
_CHECKED = 9  # seeds from which the exact tests could confirm a difference after correction


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of paired differences over n seeds, with its tests and its verdict in words.

    - low, high: the uncorrected 95 % t interval; None for one seed.
    - p: two-sided paired t test. holm: p after Holm's correction over `comparisons`. None for fewer than three seeds.
    - sign_flip_p, sign_p: exact tests as checks on the t test's normality; they never decide the word. sign_flip_p is
      None above 16 seeds.
    """

    n: int
    mean: float
    low: float | None
    high: float | None
    p: float | None
    holm: float | None
    comparisons: int
    sign_flip_p: float | None
    sign_p: float

    @property
    def word(self) -> DifferenceWord:
        """Return the only word that may be said about this difference."""
        if self.holm is None:
            return "too few seeds"
        if self.holm >= 1 - LEVEL:
            return "no difference seen"
        return "ahead" if self.mean > 0 else "behind"

    def reversed(self) -> "Difference":
        """Return the difference seen from the other side."""
        low, high = (None if bound is None else -bound for bound in (self.high, self.low))
        return replace(self, mean=-self.mean, low=low, high=high)

    @property
    def addition(self) -> str:
        """Return a qualification of the word in brackets; empty if it needs none."""
        additions = []
        alone = self.low is not None and self.high is not None and not self.low <= 0 <= self.high
        if alone and self.word == "no difference seen":
            additions.append(f"interval alone leaves out zero; {counted(self.comparisons, 'comparison')}")
        if self.n >= _CHECKED and self.p is not None and self.sign_flip_p is not None:
            limit = 1 - LEVEL
            if (self.p < limit) != (self.sign_flip_p < limit):
                additions.append("t test and sign-flip test disagree")
        return f"({'; '.join(additions)})" if additions else ""

    @property
    def verdict(self) -> str:
        """Return the word with its addition."""
        return f"{self.word} {self.addition}".rstrip()

    def interval_text(self, scale: float = 1.0, decimals: int = 1) -> str:
        """Return the interval times `scale`, e.g. "-0.5 to +4.5"; a dash for one seed."""
        if self.low is None or self.high is None:
            return "–"
        return f"{scale * self.low:+.{decimals}f} to {scale * self.high:+.{decimals}f}"

    def checks_text(self) -> str:
        """Return the p values of all tests; empty for fewer than three seeds."""
        if self.p is None or self.holm is None:
            return ""
        flipped = "" if self.sign_flip_p is None else f"sign flips {self.sign_flip_p:.2g}, "
        return f"p {self.p:.2g}, Holm {self.holm:.2g}; checks: {flipped}signs {self.sign_p:.2g}"


def compare_family(differences: Sequence[Sequence[float]], step: float = STEP) -> list[Difference]:
    """Judge all comparisons of one family: methods with one baseline in one setting, protocol and measure.

    differences: of each comparison, one difference for each common seed. Those of fewer than three seeds are not part
    of the family. step: the smallest step of the measure, in the unit of the differences. The standard deviation counts
    as at least step / sqrt(12), because equal differences prove no certainty.

    Example:
        >>> ahead, unclear = compare_family([[3.0, 2.6, 2.9], [2.1, 1.7, -2.6]], step=0.01)
        >>> ahead.word, unclear.word
        ('ahead', 'no difference seen')
    """
    p_values = [_paired_p(values, step) if len(values) >= MIN_SEEDS else None for values in differences]
    comparisons = sum(p is not None for p in p_values)
    corrected = _holm(p_values)
    judged = []
    for values, p, holm in zip(differences, p_values, corrected, strict=True):
        low, high = t_interval(values, LEVEL, step) or (None, None)
        tests = _sign_flip_p(values), _sign_p(values)
        judged.append(Difference(len(values), fmean(values), low, high, p, holm, comparisons, *tests))
    return judged


def t_interval(values: Sequence[float], level: float = LEVEL, step: float = STEP) -> tuple[float, float] | None:
    """Return the two-sided t interval of a mean: (low, high), or None for a single value.

    values: one for each seed. level: coverage of the interval, in (0, 1). step: smallest step of the values, which
    bounds their standard deviation from below (`spread`).
    """
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
    """Return the quantile of Student's t distribution.

    share: probability below the quantile, in (0, 1). degrees: degrees of freedom.
    """
    from scipy.stats import t  # imports numpy

    return float(t.ppf(share, degrees))


def paired_differences(
    seeds: Sequence[int], values: Sequence[float], other_seeds: Sequence[int], other_values: Sequence[float]
) -> dict[int, float]:
    """Subtract the other row's values from the first row's: by common seed, ascending.

    seeds: seeds of the first row. values: its values, in the order of its seeds. other_seeds: seeds of the other row.
    other_values: its values, in the order of its seeds.
    """
    ours, theirs = (dict(zip(*row, strict=True)) for row in ((seeds, values), (other_seeds, other_values)))
    return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}


def _paired_p(values: Sequence[float], step: float) -> float:
    from scipy.stats import t

    mean, error = fmean(values), spread(values, step) / sqrt(len(values))
    if error == 0:
        return float(mean == 0)
    return float(2 * t.sf(abs(mean) / error, len(values) - 1))


def _holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Correct p values by Holm's step-down procedure; None stays None and does not count."""
    ordered = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    # The running maximum keeps corrected values in the order of the raw ones; without it a larger p may get a smaller
    # corrected value.
    largest = 0.0
    for position, (p, index) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - position) * p))
        corrected[index] = largest
    return corrected


def _sign_flip_p(values: Sequence[float]) -> float | None:
    """Return the share of all sign flips whose sum is as far from zero as the observed one."""
    if len(values) > _MAX_FLIPPED:
        return None
    import numpy as np

    flips = np.array(list(product((1.0, -1.0), repeat=len(values))))
    sums = np.abs(flips @ np.asarray(values, dtype=np.float64))
    # Sums that are equal in exact arithmetic may differ in their last bits, and ties count as extreme.
    tolerance = 1e-12 * max(1.0, float(np.abs(values).sum()))
    return float(np.mean(sums >= sums[0] - tolerance))


def _sign_p(values: Sequence[float]) -> float:
    """Return the two-sided p of the sign test without differences of zero."""
    signs = [value > 0 for value in values if value != 0]
    if not signs:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(sum(signs), len(signs)).pvalue)


POOLED = "central"  # trains on the pooled data of all clients: a reference, neither ranked nor part of a family


@dataclass(frozen=True, slots=True)
class Paired:
    """The accuracy of one row of a table minus that of another, over the seeds that both ran.

    Attributes:
        label: label of the first row.
        reference: label of the other row.
        seeds: the common seeds.
        outcome: the difference as a share in [0, 1], with its interval and word.
        left_out: seeds that only one row has.
        unlike: other keys in which the rows differ, with their values; empty if there are none.
    """

    label: str
    reference: str
    seeds: list[int]
    outcome: Difference
    left_out: list[int]
    unlike: str = ""

    def words(self) -> str:
        """Return the comparison in one sentence."""
        skipped = f"; seeds {', '.join(map(str, self.left_out))} were run by one of them alone" if self.left_out else ""
        checks = f"; {text}" if (text := self.outcome.checks_text()) else ""
        unlike = f"; they differ in {self.unlike} too" if self.unlike else ""
        return (
            f"{self.label} against {self.reference}: {self.outcome.verdict}, {self.figures()}{checks}{skipped}{unlike}"
        )

    def figures(self) -> str:
        """Return the mean difference in points with its interval and number of seeds."""
        points = f"{100 * self.outcome.mean:+.1f} points"
        if self.outcome.low is None:
            return f"{points} with one seed"
        interval = f"95 % interval {self.outcome.interval_text(100)}"
        return f"{points}, {interval} over {counted(len(self.seeds), 'seed')}"


def paired(row: ResultRow, reference: ResultRow) -> Paired:
    """Compare two rows alone, seed by seed.

    Raises `ConfigError` if they have no common seed, or differ in protocol, selection or setting.

    Args:
        row: the row of a table to compare.
        reference: the row of the baseline.
    """
    if not comparable(row, reference):
        names = [key for key in ("protocol", "select") if row[key] != reference[key]]
        why = names[0] if names else different_settings(row, reference) or "the name of their setting"
        raise ConfigError(f"{row['label']} and {reference['label']} differ in {why}: such accuracies are not compared")
    pairs = paired_family([row], reference)
    if not pairs:
        raise ConfigError(f"{row['label']} and {reference['label']} have no seed in common")
    return pairs[0]


def paired_family(rows: Sequence[ResultRow], reference: ResultRow) -> list[Paired]:
    """Compare comparable rows with one reference, as one family; rows without a common seed are left out."""
    compared, differences = [], []
    for row in rows:
        by_seed = paired_differences(row["seeds"], row["by_seed"], reference["seeds"], reference["by_seed"])
        if by_seed:
            compared.append((row, sorted(by_seed)))
            differences.append(list(by_seed.values()))
    outcomes = compare_rows([row for row, _ in compared], differences, reference["step"])
    return [
        Paired(
            row["label"],
            reference["label"],
            seeds,
            outcome,
            sorted(set(row["seeds"]) ^ set(reference["seeds"])),
            different_keys(row, reference),
        )
        for (row, seeds), outcome in zip(compared, outcomes, strict=True)
    ]


def compare_rows(rows: Sequence[ResultRow], differences: Sequence[Sequence[float]], step: float) -> list[Difference]:
    """Judge the differences of rows from one reference as one family, in which equal runs of two names count once.

    differences: of each row, one difference for each common seed. step: the smallest step of the measure.
    """
    # The same runs under two names are one test; counting them twice would make Holm's correction too strict.
    runs = [run_identity(row) for row in rows]
    distinct = dict(zip(runs, differences, strict=True))
    outcomes = dict(zip(distinct, compare_family(list(distinct.values()), step), strict=True))
    return [outcomes[run] for run in runs]


def all_paired(rows: Sequence[ResultRow], against: str) -> list[Paired]:
    """Compare every row with that of the method `against` in the same setting, in the order of `rows`.

    Which rows compare is told in `comparability`. Rows with a diverged run, training on pooled data, and the runs of
    the reference under another name are left out: as in the headline, so that both correct over the same family. The
    rows compared with one reference are a family, further rows of `against` included.
    """
    contexts = context_numbers(rows)
    pairs: dict[tuple[int, int], Paired] = {}
    for index, reference in enumerate(rows):
        if reference["method"] != against or reference["diverged"]:
            continue
        if any(same_runs(reference, rows[earlier]) for earlier in range(index) if contexts[earlier] == contexts[index]):
            continue
        family = [
            (position, row)
            for position, row in enumerate(rows)
            if contexts[position] == contexts[index]
            and not (row["diverged"] or row["method"] == POOLED or same_runs(row, reference))
            and set(row["seeds"]) & set(reference["seeds"])
        ]
        compared = paired_family([row for _, row in family], reference)
        pairs |= {(position, index): pair for (position, _), pair in zip(family, compared, strict=True)}
    return [pairs[key] for key in sorted(pairs)]
