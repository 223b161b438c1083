"""A reproduced table as a section of a report, and as Markdown."""

from collections.abc import Sequence
from statistics import fmean
from typing import TypeAlias

from tabulate import tabulate

from fedloom.papers import compared_values as compared
from fedloom.papers.compared_values import ComparedOrder, ComparedValue, FailureReasons
from fedloom.papers.measurements import Measurement
from fedloom.papers.recipe import Recipe
from fedloom.papers.verdicts import NOT_RUN
from fedloom.results.data_table import Cell, DataTable
from fedloom.results.group import mean_std
from fedloom.results.page_sections import PageSection

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
        values = compared.compare_values(recipe, measurements, failures)
        blocks += [*_comparison(recipe, measurements, values), compared.limitations(values, failures)]
    if choices:
        blocks += ["Choices where the paper is silent:", list(choices)]
    return blocks


def markdown_of(blocks: Sequence[Block]) -> str:
    """Blocks as Markdown, with an empty line between two of them."""
    return "\n\n".join(filter(None, map(_markdown, blocks)))


def bullets(texts: Sequence[str]) -> str:
    """Texts as a list of Markdown."""
    return "\n".join(f"- {text}" for text in texts)


def number(mean: float, std: float | None) -> str:
    """A mean with its spread, where there is one."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def _markdown(block: Block) -> str:
    if isinstance(block, DataTable):
        return tabulate(block.texts, block.columns, tablefmt="pipe", disable_numparse=True)
    return block if isinstance(block, str) else bullets(block)


def _comparison(recipe: Recipe, measurements: Sequence[Measurement], values: Sequence[ComparedValue]) -> list[Block]:
    run = [value for value in values if value.was_run]
    if not run:
        return ["Nothing of this table has been run."]
    orders = [order for order in compared.compare_orders(recipe, values) if order.verdict.why != NOT_RUN]
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
