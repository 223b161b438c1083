"""Compare the finished cells of a table, and the order of its methods, with the printed values, and tabulate both."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from statistics import fmean
from typing import Any, TypeAlias

from tabulate import tabulate

from fedloom.core.text import listed, lists_by_key, seeds_text
from fedloom.papers import verdicts
from fedloom.papers.measurements import ACCURACY, GAIN, OTHER_IMAGES, VARIANT, Measurement, PrintedRow, printed_rows
from fedloom.papers.recipe import Recipe
from fedloom.papers.verdicts import NOT_RUN, STEP, RankAgreement, Verdict
from fedloom.results.data_table import Cell, DataTable
from fedloom.results.group import mean_std
from fedloom.results.page_sections import PageSection

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
    by_value = lists_by_key(((of.column, of.row, of.metric, of.domain), of) for of in measurements)
    compared = []
    for value, column, row in printed_rows(recipe):
        measured = by_value.get((column or "", row, value.metric, value.domain), [])
        reason = _reason(recipe, (value, column, row), measured, other_data, failures or {})
        compared.append(_compare(recipe, (value, column, row), measured, other_data, reason))
    return compared


def compare_orders(recipe: Recipe, values: Sequence[ComparedValue]) -> list[ComparedOrder]:
    """Compare the order of the methods with the printed one, by column and metric.
    Variants do not count, and gains have the order of the accuracies that they come from."""
    ordered = (value for value in values if not VARIANT.search(value.row) and value.metric != GAIN)
    groups = lists_by_key(((value.column, value.metric, value.domain), value) for value in ordered)
    compared = []
    for (column, metric, domain), group in groups.items():
        if all(value.theirs is None for value in group):
            continue  # nothing is printed for these data
        printed = [(value, value.theirs) for value in group if value.was_run and value.theirs is not None]
        ours, theirs = [value.rank_value for value, _ in printed], [value for _, value in printed]
        agreement = verdicts.rank_agreement(ours, theirs)
        rows = {value.row: (printed_value, value.by_seed) for value, printed_value in printed}
        step = max(value.step for value in group)  # few test samples prove the least
        pairs = verdicts.judge_pairs(rows, recipe.table.margin, step)
        verdict = verdicts.judge_order(agreement, list(pairs.values()), None if printed else NOT_RUN)
        compared.append(ComparedOrder(column, metric, domain, agreement, verdict))
    return compared


def limitations(values: Sequence[ComparedValue], failures: FailureReasons | None = None) -> list[str]:
    """List the limits of the comparison: seeds, values that are equal on all of them, failures, and rows not run."""
    run = [value for value in values if value.was_run]
    single = _rows_by_column(value for value in run if len(value.seeds) == 1).items()
    sentences = [f"{column}: one seed only, which decides nothing: {listed(rows)}." for column, rows in single]
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
    sentences, seeds_of = [], dict[str, dict[str, set[int]]]()
    for value in run:
        seeds_of.setdefault(value.column, {}).setdefault(value.row, set()).update(value.seeds)
    for column, by_row in seeds_of.items():
        if len({*map(frozenset, by_row.values())}) > 1:
            groups = {
                seeds_text(sorted(seeds)): [r for r, of in by_row.items() if of == seeds] for seeds in by_row.values()
            }
            shown = "; ".join(f"{seeds} for {listed(rows)}" for seeds, rows in groups.items())
            sentences.append(f"{column}: methods were run with different seeds ({shown}).")
    return sentences


def _rows_by_column(values: Iterable[ComparedValue]) -> dict[str, list[str]]:
    rows: dict[str, dict[str, None]] = {}
    for value in values:
        rows.setdefault(value.column, {})[value.row] = None
    return {column: list(names) for column, names in rows.items()}


def _compare(
    recipe: Recipe, printed_row: PrintedRow, measurements: Sequence[Measurement], other_data: bool, reason: str | None
) -> ComparedValue:
    value, column, row = printed_row
    by_seed = {measurement.seed: measurement.ours for measurement in sorted(measurements, key=lambda m: m.seed)}
    numbers = {seed: ours for seed, ours in by_seed.items() if ours is not None}
    to_target = value.metric.startswith("rounds_to_")
    if reason is None and measurements and not numbers and not to_target:
        reason = f"no run gives {value.metric}{f' of {value.domain}' if value.domain else ''}"
    seeds, ours = list(by_seed if to_target else numbers), list(numbers.values())
    # Rounds are whole numbers; an accuracy moves by one test sample, of 10,000 where their number was not recorded.
    samples = [measurement.test_samples for measurement in measurements if measurement.test_samples is not None]
    step = 1.0 if to_target else 100 / min(samples) if samples else STEP
    printed: dict[str, Any] = {"theirs_std": value.std, "theirs_runs": recipe.table.printed_runs}
    missed, margin = len(seeds) - len(ours), recipe.table.margin
    verdict = verdicts.judge_value(ours, value.value, margin=margin, step=step, missed=missed, reason=reason, **printed)
    claim = recipe.claimed_gain(value)
    # Some value then lies within the margin of both printed ones, the own method's and its baseline's.
    if reason is None and claim is not None and 0 < claim < 2 * margin:
        verdict = replace(verdict, why=f"{verdict.why}; margin is as wide as the claim")
    name = f"{_STAND_IN if other_data else ''}{column or value.column}"
    theirs = (None, None) if other_data else (value.value, value.std)
    seconds = [measurement.seconds for measurement in measurements if measurement.seconds is not None]
    mean_seconds = fmean(seconds) if seconds else None
    shared = row, value.method, value.metric, value.domain, seeds, ours, *theirs
    return ComparedValue(name, *shared, mean_seconds, verdict, step)


def _reason(
    recipe: Recipe, printed: PrintedRow, measurements: Sequence[Measurement], other_data: bool, failures: FailureReasons
) -> str | None:
    """Why a printed value cannot be compared with ours; None if it can."""
    value, column, row = printed
    run_row, _ = recipe.table.predictor_rows.get(row, (row, ""))
    if column is None:
        return "a mean over other columns"
    if run_row in recipe.table.columns[column].get("without", []):
        return "left out here; see the recipe's choices"
    if not measurements:
        failure = next(iter(failures.get((column, run_row), {}).values()), None)
        return NOT_RUN if failure is None else f"failed: {failure}"
    if value.metric == GAIN and run_row == recipe.table.baseline:
        return "the gain of a method over itself"
    if value.metric == "ms_per_epoch":
        return "times of another machine: only their order is compared"
    if other_data:
        return _OTHER_DATA
    if not all(measurement.comparable for measurement in measurements):
        if measurements[0].changed == OTHER_IMAGES:
            return f"{OTHER_IMAGES}, not the paper's own pixels"
        if recipe.paper.searched and recipe.scale_text("small") not in measurements[0].changed:
            return "the paper prints the best result of a search, and this is one point of it"
        return "another setting: only their order is compared"
    variant = VARIANT.search(row)
    return None if variant is None else f"{_VARIANTS[variant[1]]}, not the printed method"


Block: TypeAlias = str | DataTable | list[str]


def as_markdown(
    recipe: Recipe, measurements: Sequence[Measurement], setting: str, failures: FailureReasons | None = None
) -> str:
    """Return the section of a table as Markdown. recipe, measurements, setting, failures: as for `table_blocks`."""
    blocks = table_blocks(recipe, measurements, setting, failures, recipe.choices)
    return f"## {recipe.paper.title}, {recipe.table.title}\n\n{markdown_of(blocks)}\n"


def as_part(
    recipe: Recipe, measurements: Sequence[Measurement], setting: str, failures: FailureReasons | None = None
) -> PageSection:
    """Return the section of a table for a report. recipe, measurements, setting, failures: as for `table_blocks`."""
    blocks = table_blocks(recipe, measurements, setting, failures, recipe.choices)
    return PageSection("paper", f"{recipe.paper.title}, {recipe.table.title}", blocks)


def table_blocks(
    recipe: Recipe,
    measurements: Sequence[Measurement],
    setting: str,
    failures: FailureReasons | None,
    choices: Sequence[str],
) -> list[Block]:
    """Compose our values and theirs with verdicts, the order of the methods, core minutes, and limitations. A figure
    has no verdicts, so only its setting and its choices are shown.
    measurements: ours, by cell and seed. setting: the setting in which the cells ran, in words. failures: why cells of
    the study failed. choices: our choices where the paper is silent."""
    blocks: list[Block] = [f"Setting: {setting}."]
    if recipe.table.kind == "table":
        values = compare_values(recipe, measurements, failures)
        blocks += [*_comparison(recipe, measurements, values), limitations(values, failures)]
    if choices:
        blocks += ["Choices where the paper is silent:", list(choices)]
    return blocks


def markdown_of(blocks: Sequence[Block]) -> str:
    """Blocks as Markdown, with an empty line between two of them."""

    def text(block: Block) -> str:
        if isinstance(block, DataTable):
            return tabulate(block.texts, block.columns, tablefmt="pipe", disable_numparse=True)
        return block if isinstance(block, str) else bullets(block)

    return "\n\n".join(filter(None, map(text, blocks)))


def bullets(texts: Sequence[str]) -> str:
    """Texts as a list of Markdown."""
    return "\n".join(f"- {text}" for text in texts)


def number(mean: float, std: float | None) -> str:
    """A mean with its spread, where there is one."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def _comparison(recipe: Recipe, measurements: Sequence[Measurement], values: Sequence[ComparedValue]) -> list[Block]:
    run = [value for value in values if value.was_run]
    if not run:
        return ["Nothing of this table has been run."]
    orders = [order for order in compare_orders(recipe, values) if order.verdict.why != NOT_RUN]
    # After the semicolon stands the difference of a single value, which is no part of the reason.
    reasons = {(value.verdict.word, value.verdict.why.partition(";")[0]) for value in run}
    none_comparable = len(reasons) == 1 and run[0].verdict.word == "not comparable"
    blocks: list[Block] = [_values_sheet(run, with_verdicts=not none_comparable)]
    if none_comparable:
        blocks.append(f"No value is comparable ({run[0].verdict.why.partition(';')[0]}).")
    if orders:
        blocks.append(_orders_sheet(orders))
    if (minutes := _minutes_sheet(run)).rows:
        blocks.append(minutes)
    machines = dict.fromkeys(measurement.machine for measurement in measurements)
    return [*blocks, f"Measured on {'; '.join(machines)}."]


def _values_sheet(values: Sequence[ComparedValue], with_verdicts: bool) -> DataTable:
    rows: list[list[Cell]] = [
        [
            value.column,
            value.row,
            with_domain(value.metric, value.domain),
            (str(len(value.seeds)), len(value.seeds)),
            (_ours_text(value), fmean(value.ours) if value.ours else None),
            ("–" if value.theirs is None else number(value.theirs, value.theirs_std), value.theirs),
            *((value.verdict.word, value.verdict.why) if with_verdicts else ()),
        ]
        for value in values
    ]
    names = ("column", "row", "measure", "seeds", "ours", "theirs", *(("verdict", "why") if with_verdicts else ()))
    caption = "Our values and the printed ones: mean ± sample standard deviation over seeds."
    return DataTable("values", caption, names, rows, heads=2)


def _orders_sheet(orders: Sequence[ComparedOrder]) -> DataTable:
    rows: list[list[Cell]] = [
        [order.column, with_domain(order.metric, order.domain), order.verdict.word, order.verdict.why]
        for order in orders
    ]
    caption = "Whether the order of the rows is the printed one: pairs printed apart, and Spearman's rank correlation."
    return DataTable("orders", caption, ("column", "measure", "order", "why"), rows)


def _minutes_sheet(values: Sequence[ComparedValue]) -> DataTable:
    seconds = {(value.column, value.row): value.seconds for value in values}
    timed = ((*cell, of) for cell, of in seconds.items() if of is not None)
    rows: list[list[Cell]] = [[column, row, (f"{of / 60:.1f}", of)] for column, row, of in timed]
    return DataTable("minutes", "Minutes of one core for a run.", ("column", "row", "core minutes"), rows, heads=2)


def with_domain(name: str, domain: str | None) -> str:
    """The name of a value, with its domain if it has one."""
    return name if domain is None else f"{name}, {domain}"


def _ours_text(value: ComparedValue) -> str:
    mean = number(*mean_std(value.ours)) if value.ours else "–"
    return f"{mean}, {len(value.ours)} of {len(value.seeds)} seeds" if value.missed_seeds else mean
