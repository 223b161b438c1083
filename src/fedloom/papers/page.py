"""A reproduced table, as a part of a page and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TypeAlias

from tabulate import tabulate

from fedloom.papers.beside import Failed, Line, OrderLine, lines, notes, orders
from fedloom.papers.gains import Gain, gains, in_words
from fedloom.papers.measured import Measured
from fedloom.papers.recipe import Recipe
from fedloom.papers.verdicts import NOT_RUN
from fedloom.study.parts import Cell, Part, Sheet
from fedloom.study.results import mean_std

Block: TypeAlias = str | Sheet | list[str]


def as_markdown(recipe: Recipe, found: Sequence[Measured], setting: str, failed: Failed | None = None) -> str:
    """`as_part` as Markdown."""
    part = as_part(recipe, found, setting, failed)
    return f"## {part.title}\n\n{markdown_of(part.blocks)}\n"


def as_part(recipe: Recipe, found: Sequence[Measured], setting: str, failed: Failed | None = None) -> Part:
    """The section of a table: `table_blocks` under the names of the paper and the table."""
    blocks = table_blocks(recipe, found, setting, failed, recipe.open)
    return Part("paper", f"{recipe.paper.paper}, {recipe.table.title}", blocks)


def table_blocks(
    recipe: Recipe, found: Sequence[Measured], setting: str, failed: Failed | None, choices: Sequence[str]
) -> list[Block]:
    """Ours beside theirs with verdicts, the order of the methods, gains over the plain method, core minutes, what
    limits the comparison, and what the paper leaves open. Figures have no verdicts, so theirs is the last alone.

    setting: the setting in which the cells ran, in words. failed: why cells of the study failed. choices: what the
    paper leaves open, and what was chosen.
    """
    blocks: list[Block] = [f"Setting: {setting}."]
    if recipe.table.kind == "table":
        every = lines(recipe, found, failed)
        blocks += [*_compared(recipe, found, every), notes(every, failed)]
    if choices:
        blocks += ["Left open by the paper, and what was chosen:", list(choices)]
    return blocks


def markdown_of(blocks: Sequence[Block]) -> str:
    """Blocks as Markdown, with an empty line between two of them."""
    return "\n\n".join(filter(None, map(_markdown, blocks)))


def _markdown(block: Block) -> str:
    if isinstance(block, Sheet):
        return tabulate(block.texts, block.columns, tablefmt="pipe", disable_numparse=True)
    return block if isinstance(block, str) else bullets(block)


def _compared(recipe: Recipe, found: Sequence[Measured], every: Sequence[Line]) -> list[str | Sheet]:
    run, order = [line for line in every if line.run], [one for one in orders(every) if one.verdict.why != NOT_RUN]
    if not run:
        return ["Nothing of this table has been run."]
    verdicts = {(line.verdict.word, line.verdict.why) for line in run}
    alike = len(verdicts) == 1 and run[0].verdict.word == "not comparable"
    blocks: list[str | Sheet] = [_lines(run, judged=not alike)]
    if alike:
        blocks.append(f"No value is comparable ({run[0].verdict.why}).")
    if order:
        blocks.append(_orders(order))
    if gained := gains(recipe, every):
        blocks += ["Gains in points, seed by seed:", _gains(gained)]
    if (costs := _costs(run)).rows:
        blocks.append(costs)
    return [*blocks, f"Measured on {'; '.join(dict.fromkeys(one.machine for one in found))}."]


def _lines(found: Sequence[Line], judged: bool) -> Sheet:
    """The values. judged: with their verdicts, which are left out where all are the same."""
    rows: list[list[Cell]] = [
        [
            line.column,
            line.row,
            _of_domain(line.metric, line.domain),
            (str(len(line.seeds)), len(line.seeds)),
            (_ours(line), fmean(line.ours) if line.ours else None),
            ("–" if line.theirs is None else number(line.theirs, line.theirs_std), line.theirs),
            *((line.verdict.word, line.verdict.why) if judged else ()),
        ]
        for line in found
    ]
    names = ("column", "row", "measure", "seeds", "ours", "theirs", *(("verdict", "why") if judged else ()))
    caption = "Ours beside the printed values: mean ± sample standard deviation over seeds."
    return Sheet("values", caption, names, rows, heads=2)


def _orders(found: Sequence[OrderLine]) -> Sheet:
    rows: list[list[Cell]] = [
        [one.column, _of_domain(one.metric, one.domain), one.verdict.word, one.verdict.why] for one in found
    ]
    caption = "Whether the order of the methods is the printed one: Spearman's rank correlation."
    return Sheet("orders", caption, ("column", "measure", "order", "why"), rows)


def _gains(found: Sequence[Gain]) -> Sheet:
    rows: list[list[Cell]] = []
    for one in found:
        ours, inside, theirs = in_words(one)
        column = one.column if one.domain is None else f"{one.column}, {one.domain}"
        numbers: list[Cell] = [(ours, fmean(one.ours)), inside, (theirs, one.theirs)]
        rows.append([column, one.row, one.over, (str(len(one.ours)), len(one.ours)), *numbers, one.seen])
    names = ("column", "row", "over", "seeds", "ours", "95 % interval", "theirs", "seen")
    return Sheet("gains", "Gains in points: the mean over equal seeds, and its t interval.", names, rows, heads=2)


def ratios_of(found: Sequence[Line]) -> dict[tuple[str, str], float]:
    """Of each row of a column that ran and was foreseen: what it took, divided by that."""
    return {
        (line.column, line.row): line.seconds / line.estimated
        for line in found
        if line.seconds is not None and line.estimated
    }


def _costs(found: Sequence[Line]) -> Sheet:
    """Minutes of one core for a run of each row, foreseen and taken; no rows where no run was on one core."""
    rows: list[list[Cell]] = []
    ratios = ratios_of(found)
    for line in {(line.column, line.row): line for line in found}.values():
        if line.seconds is None:
            continue
        ratio = ratios.get((line.column, line.row))
        foreseen = "–" if line.estimated is None else f"{line.estimated / 60:.1f}"
        numbers: list[Cell] = [(foreseen, line.estimated), (f"{line.seconds / 60:.1f}", line.seconds)]
        rows.append([line.column, line.row, *numbers, ("–" if ratio is None else f"{ratio:.2f}", ratio)])
    names = ("column", "row", "core minutes foreseen", "taken", "ratio")
    return Sheet("minutes", "Minutes of one core for a run, foreseen and taken.", names, rows, heads=2)


def _of_domain(metric: str, domain: str | None) -> str:
    return metric if domain is None else f"{metric}, {domain}"


def _ours(line: Line) -> str:
    told = number(*mean_std(line.ours)) if line.ours else "–"
    return f"{told}, {len(line.ours)} of {len(line.seeds)} seeds" if line.missed else told


def number(mean: float, std: float | None) -> str:
    """With its spread, where there is one."""
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def bullets(texts: Sequence[str]) -> str:
    """Texts as a list of Markdown."""
    return "\n".join(f"- {text}" for text in texts)
