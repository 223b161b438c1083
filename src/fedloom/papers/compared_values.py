"""Compare the finished cells of a table, the order of its methods, and their gains with the printed values."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from typing import Literal

from fedloom.core.text import listed, seeds_text
from fedloom.papers.measurements import ACCURACY, GAIN, OTHER_IMAGES, VARIANT, Measurement, printed_rows
from fedloom.papers.recipe import PrintedValue, Recipe
from fedloom.papers.verdicts import (
    NOT_RUN,
    STEP,
    RankAgreement,
    Verdict,
    judge_order,
    judge_pairs,
    judge_value,
    rank_agreement,
)
from fedloom.results.difference import Difference, compare_family, paired_differences

FailureReasons = Mapping[tuple[str, str], Mapping[int, str]]  # by column and row of the study, then by seed
_OTHER_DATA = "not the paper's data, so no printed value is compared with them"
_STAND_IN = "stand-in for "
_VARIANTS = {"authors": "released code", "sound": "our default"}


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """One value: ours by seed, and theirs.

    Attributes:
        row: name of the row in the study.
        method: name of the method as printed.
        ours: our values; seeds that never reached a target are excluded.
        theirs: None where nothing is printed, and where other data replace the paper's, as `column` then says.
        theirs_std: the printed standard deviation; None where there is none.
        seconds: mean of a run on one core.
        step: the smallest step of one value, in its unit.
    """

    column: str
    row: str
    method: str
    metric: str
    domain: str | None
    seeds: list[int]
    ours: list[float]
    theirs: float | None
    theirs_std: float | None
    seconds: float | None
    verdict: Verdict
    step: float = STEP

    @property
    def was_run(self) -> bool:
        """Whether some seed was run."""
        return bool(self.seeds)

    @property
    def missed_seeds(self) -> int:
        """How many seeds never reached the target."""
        return len(self.seeds) - len(self.ours)

    @property
    def by_seed(self) -> dict[int, float]:
        """Our values by seed; none where a seed never reached the target, which leaves the others without a mean."""
        return {} if self.missed_seeds else dict(zip(self.seeds, self.ours, strict=True))

    @property
    def rank_value(self) -> float:
        """The value that orders the methods: the mean, or infinity (rounds) if a seed never reached the target."""
        return inf if self.missed_seeds else fmean(self.ours)


@dataclass(frozen=True, slots=True)
class ComparedOrder:
    """The order of the methods in one column by one metric; `agreement` is None where there is no order."""

    column: str
    metric: str
    domain: str | None
    agreement: RankAgreement | None
    verdict: Verdict

    @property
    def counts(self) -> bool:
        """Whether there are enough rows to tell an order from chance."""
        return self.agreement is not None and self.agreement.chance is not None


def compare_values(
    recipe: Recipe, measurements: Sequence[Measurement], failures: FailureReasons | None = None
) -> list[ComparedValue]:
    """Compare every printed value with ours, and each variant of a method (`authors`, `sound`) with the same value.

    A value that was not run, failed, or cannot be compared is in the list, and its verdict has the reason.

    Args:
        recipe: has the printed values.
        measurements: ours, by cell and seed.
        failures: why cells failed, by column and row, then by seed.
    """
    other_data = any(measurement.stand_in for measurement in measurements)
    by_value: dict[tuple[str, str, str, str | None], list[Measurement]] = {}
    for measurement in measurements:
        by_value.setdefault(measurement.key[:-1], []).append(measurement)
    compared = []
    for value, column, row in printed_rows(recipe):
        measured = by_value.get((column or "", row, value.metric, value.domain), [])
        compared.append(_compare(recipe, value, column, row, measured, other_data, failures or {}))
    return compared


def compare_orders(recipe: Recipe, values: Sequence[ComparedValue]) -> list[ComparedOrder]:
    """Compare the order of the methods with the printed one, by column and metric.

    Variants do not count, and gains have the order of the accuracies that they come from.
    """
    groups: dict[tuple[str, str, str | None], list[ComparedValue]] = {}
    for value in values:
        if not VARIANT.search(value.row) and value.metric != GAIN:
            groups.setdefault((value.column, value.metric, value.domain), []).append(value)
    compared = []
    for (column, metric, domain), group in groups.items():
        if all(value.theirs is None for value in group):
            continue  # nothing is printed for these data
        printed = [(value, value.theirs) for value in group if value.was_run and value.theirs is not None]
        agreement = rank_agreement([value.rank_value for value, _ in printed], [theirs for _, theirs in printed])
        rows = {value.row: (theirs, value.by_seed) for value, theirs in printed}
        pairs = judge_pairs(rows, recipe.table.margin, largest_step(group))
        verdict = judge_order(agreement, list(pairs.values()), None if printed else NOT_RUN)
        compared.append(ComparedOrder(column, metric, domain, agreement, verdict))
    return compared


def limitations(values: Sequence[ComparedValue], failures: FailureReasons | None = None) -> list[str]:
    """List the limits of the comparison: single seeds, other seeds for some methods, the same value on all seeds,
    failures, and rows that were not run."""
    run = [value for value in values if value.was_run]
    sentences = []
    for column, rows in _rows_by_column(value for value in run if len(value.seeds) == 1).items():
        sentences.append(f"{column}: one seed only, which decides nothing: {listed(rows)}.")
    sentences += _different_seeds(run)
    accuracies = (value for value in run if value.metric in ACCURACY)
    constant = (value for value in accuracies if len(value.ours) > 1 and len(set(value.ours)) == 1)
    for column, rows in _rows_by_column(constant).items():
        sentences.append(
            f"{column}: the same value on every seed, as of nets that answer one class always: {listed(rows)}."
        )
    prefix = _STAND_IN if values and values[0].column.startswith(_STAND_IN) else ""
    rows_by_reason: dict[tuple[str, str], list[str]] = {}
    for (column, row), by_seed in (failures or {}).items():
        for reason in dict.fromkeys(by_seed.values()):
            seeds = [seed for seed, text in by_seed.items() if text == reason]
            rows_by_reason.setdefault((prefix + column, reason), []).append(f"{row} ({seeds_text(seeds)})")
    sentences += [f"{column}: failed: {listed(rows)}: {reason}" for (column, reason), rows in rows_by_reason.items()]
    # In columns that were not begun, single rows would be a long list of nothing.
    begun = {value.column for value in run} | {column for column, _ in rows_by_reason}
    missing = _rows_by_column(value for value in values if value.verdict.why == NOT_RUN)
    sentences += [f"{column}: not run yet: {listed(rows)}." for column, rows in missing.items() if column in begun]
    if run and (columns := [column for column in missing if column not in begun]):
        sentences.append(f"Columns not run yet: {listed(columns)}.")
    return sentences


def _different_seeds(run: Sequence[ComparedValue]) -> list[str]:
    """A sentence for each column whose methods were run with different seeds."""
    sentences = []
    for column in dict.fromkeys(value.column for value in run):
        seeds_by_row: dict[str, set[int]] = {}
        for value in run:
            if value.column == column:
                seeds_by_row.setdefault(value.row, set()).update(value.seeds)
        rows_by_seeds: dict[tuple[int, ...], list[str]] = {}
        for row, seeds in seeds_by_row.items():
            rows_by_seeds.setdefault(tuple(sorted(seeds)), []).append(row)
        if len(rows_by_seeds) > 1:
            groups = "; ".join(f"{seeds_text(seeds)} for {listed(rows)}" for seeds, rows in rows_by_seeds.items())
            sentences.append(f"{column}: methods were run with different seeds ({groups}).")
    return sentences


def _rows_by_column(values: Iterable[ComparedValue]) -> dict[str, list[str]]:
    """The rows of values by column, each once."""
    rows: dict[str, dict[str, None]] = {}
    for value in values:
        rows.setdefault(value.column, {})[value.row] = None
    return {column: list(names) for column, names in rows.items()}


def _compare(
    recipe: Recipe,
    value: PrintedValue,
    column: str | None,
    row: str,
    measurements: Sequence[Measurement],
    other_data: bool,
    failures: FailureReasons,
) -> ComparedValue:
    by_seed = {measurement.seed: measurement.ours for measurement in sorted(measurements, key=lambda m: m.seed)}
    numbers = {seed: ours for seed, ours in by_seed.items() if ours is not None}
    to_target = value.metric.startswith("rounds_to_")
    not_comparable = _OTHER_DATA if other_data else _setting_reason(recipe, measurements)
    reason = _reason(recipe, value, column, row, not_comparable, bool(measurements), failures)
    if reason is None and measurements and not numbers and not to_target:
        reason = f"no run gives {value.metric}{f' of {value.domain}' if value.domain else ''}"
    seeds, ours = list(by_seed if to_target else numbers), list(numbers.values())
    # Rounds are whole numbers; an accuracy moves by one test sample, of 10,000 where their number was not recorded.
    samples = [measurement.test_samples for measurement in measurements if measurement.test_samples is not None]
    step = 1.0 if to_target else 100 / min(samples) if samples else STEP
    verdict = judge_value(
        ours,
        value.value,
        margin=recipe.table.margin,
        step=step,
        theirs_std=value.std,
        theirs_runs=recipe.table.printed_runs,
        missed=len(seeds) - len(ours),
        reason=reason,
    )
    claim = recipe.claimed_gain(value)
    # Some value then lies within the margin of both printed ones, the own method's and its baseline's.
    if reason is None and claim is not None and 0 < claim < 2 * recipe.table.margin:
        verdict = replace(verdict, why=f"{verdict.why}; margin is as wide as the claim")
    name = f"{_STAND_IN if other_data else ''}{column or value.column}"
    theirs = (None, None) if other_data else (value.value, value.std)
    seconds = [measurement.seconds for measurement in measurements if measurement.seconds is not None]
    mean_seconds = fmean(seconds) if seconds else None
    shared = row, value.method, value.metric, value.domain, seeds, ours, *theirs
    return ComparedValue(name, *shared, mean_seconds, verdict, step)


def largest_step(values: Iterable[ComparedValue]) -> float:
    """Return the step of a family of values: the largest one, as few test samples prove the least."""
    return max(value.step for value in values)


def _setting_reason(recipe: Recipe, measurements: Sequence[Measurement]) -> str | None:
    """Why these measurements are not of the paper's own setting; None if they are."""
    if all(measurement.comparable for measurement in measurements):
        return None
    changed = measurements[0].changed
    if changed == OTHER_IMAGES:
        return f"{OTHER_IMAGES}, not the paper's own pixels"
    if recipe.paper.searched and recipe.scale_text("small") not in changed:
        return "the paper prints the best result of a search, and this is one point of it"
    return "another setting: only order and gains are compared"


def _reason(
    recipe: Recipe,
    value: PrintedValue,
    column: str | None,
    row: str,
    not_comparable: str | None,
    was_run: bool,
    failures: FailureReasons,
) -> str | None:
    """Why a printed value cannot be compared with ours. not_comparable: why none of the table can be."""
    run_row, _ = recipe.table.predictor_rows.get(row, (row, ""))
    if column is None:
        return "a mean over other columns"
    if run_row in recipe.table.columns[column].get("without", []):
        return "left out here; see the recipe's choices"
    if not was_run:
        failure = next(iter(failures.get((column, run_row), {}).values()), None)
        return NOT_RUN if failure is None else f"failed: {failure}"
    if value.metric == GAIN and run_row == recipe.table.baseline:
        return "the gain of a method over itself"
    if value.metric == "ms_per_epoch":
        return "times of another machine: only their order is compared"
    if not_comparable is not None:
        return not_comparable
    variant = VARIANT.search(row)
    return None if variant is None else f"{_VARIANTS[variant[1]]}, not the printed method"


# -- gains -------------------------------------------------------------------------------------------------------------
GainGroup = Literal["own", "baselines", "variants"]


@dataclass(frozen=True, slots=True)
class Gain:
    """Accuracy of `row` minus that of the row `baseline`, in points.

    group: of the paper's own method, of a baseline over the plain method, or of a variant (`authors`, `sound`), which
    is not printed. ours: over the seeds that both rows have. theirs: the difference of the printed means, or None.
    """

    column: str
    domain: str | None
    row: str
    baseline: str
    group: GainGroup
    ours: Difference
    theirs: float | None

    @property
    def holds_theirs(self) -> bool | None:
        """Whether our interval holds the printed gain; None where there is no interval or no printed gain."""
        if self.ours.low is None or self.ours.high is None or self.theirs is None:
            return None
        return self.ours.low <= self.theirs <= self.ours.high


def gains(recipe: Recipe, values: Sequence[ComparedValue]) -> list[Gain]:
    """Compute the gains of all rows that were run, as the table counts accuracy: of the own method over every baseline,
    or over the method that it wraps, and of other rows over the plain one."""
    accuracies = [value for value in values if value.was_run and value.metric in ACCURACY]
    by_row = {(value.column, value.domain, value.metric, value.row): value for value in accuracies}
    families: dict[tuple[object, ...], list[tuple[ComparedValue, ComparedValue, list[float]]]] = {}
    for value in accuracies:
        group = _group(recipe, value.row)
        for name in _baselines(recipe, value.row):
            baseline = by_row.get((value.column, value.domain, value.metric, name))
            if baseline is None:
                continue
            by_seed = paired_differences(value.seeds, value.ours, baseline.seeds, baseline.ours)
            if by_seed:
                # Holm's correction counts comparisons, so a family holds all that answer one question: those of a
                # group in one column, with a separate family for baselines over an unusual row
                family = (value.column, value.domain, value.metric, group, "" if group == "own" else name)
                families.setdefault(family, []).append((value, baseline, list(by_seed.values())))
    computed = []
    for compared in families.values():
        step = largest_step(value for value, *_ in compared)
        outcomes = compare_family([differences for _, _, differences in compared], step)
        for (value, baseline, _), outcome in zip(compared, outcomes, strict=True):
            printed = None
            group = _group(recipe, value.row)
            if value.theirs is not None and baseline.theirs is not None and group != "variants":
                printed = value.theirs - baseline.theirs
            computed.append(Gain(value.column, value.domain, value.row, baseline.row, group, outcome, printed))
    return computed


def count_gains(computed: Sequence[Gain], group: GainGroup | None, positive: bool = True) -> Counter[str]:
    """Count the printed gains that are "seen", "contradicted", "not seen", or of "too few seeds" to judge.

    group: the group to count (None: all). positive: count gains printed above zero; else the others, which are seen if
    ours is behind.
    """
    outcomes = {"too few seeds": "too few seeds", "no difference seen": "not seen"}
    outcomes |= {"ahead": "seen", "behind": "contradicted"} if positive else {"behind": "seen", "ahead": "contradicted"}
    return Counter(
        outcomes[gain.ours.word]
        for gain in computed
        if gain.theirs is not None and group in (None, gain.group) and (gain.theirs > 0) == positive
    )


def judged(counts: Counter[str]) -> int:
    """Return how many of the counted gains had enough seeds to be judged."""
    return counts.total() - counts["too few seeds"]


def gain_lines(computed: Sequence[Gain]) -> list[str]:
    """Return the head lines: the own method's printed gains, those of baselines, and gains printed as none."""
    lines = [_counts_text(name, count_gains(computed, group)) for name, group in _COUNTED_GROUPS.items()]
    losses = count_gains(computed, None, positive=False)
    return [*lines, _counts_text("printed as zero or below", losses, "printed losses")] if losses else lines


_COUNTED_GROUPS: dict[str, GainGroup] = {"own method": "own", "baselines": "baselines"}


def _counts_text(heading: str, counts: Counter[str], noun: str = "printed gains") -> str:
    """The counts as a line, which always names all three outcomes."""
    skipped = f"; {counts['too few seeds']} with too few seeds" if counts["too few seeds"] else ""
    if not judged(counts):
        return f"{heading}: no {noun} of three seeds or more{skipped}"
    outcomes = f"{counts['contradicted']} contradicted, {counts['not seen']} no difference seen"
    return f"{heading}: {counts['seen']} of {judged(counts)} {noun} seen, {outcomes}{skipped}"


def _group(recipe: Recipe, row: str) -> GainGroup:
    if VARIANT.search(row):
        return "variants"
    return "own" if recipe.is_own(row) else "baselines"


def _baselines(recipe: Recipe, row: str) -> Iterator[str]:
    """Yield the rows over which a row's gains are."""
    plain = recipe.baseline_of(row)
    wrapped = "+" in recipe.rows.get(row, {"method": ""})["method"]
    if plain is None:
        return
    if _group(recipe, row) != "own" or wrapped or recipe.is_own(plain):
        yield plain
        return
    yield from (name for name in recipe.rows if not recipe.is_own(name) and not VARIANT.search(name))
