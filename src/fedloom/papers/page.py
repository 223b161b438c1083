"""A reproduced table as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from fedloom.papers.beside import Line, OrderLine, lines, notes, orders
from fedloom.papers.gains import Gain, gains, in_words
from fedloom.papers.measured import Measured
from fedloom.papers.recipe import Recipe
from fedloom.papers.verdicts import NOT_RUN
from fedloom.study.results import mean_std


def as_markdown(recipe: Recipe, found: Sequence[Measured], setting: str) -> str:
    """Ours beside theirs with verdicts, the order of the methods, what each gains over the plain one, what it took,
    what limits the comparison, and what the paper leaves open. Lines that were not run are named below.

    setting: in what setting the cells ran, in words.
    """
    every = lines(recipe, found)
    run, order = [line for line in every if line.run], [one for one in orders(every) if one.verdict.why != NOT_RUN]
    parts = [f"## {recipe.paper.paper}, {recipe.table.title}", f"Setting: {setting}."]
    if run:
        gained = gains(recipe, every)
        parts += [_lines(run), *([_orders(order)] if order else [])]
        parts += [*(["Gains in points, seed by seed:", _gains(gained)] if gained else [])]
        parts += [_costs(run)]
        parts.append(f"Measured on {'; '.join(dict.fromkeys(one.machine for one in found))}.")
    else:
        parts.append("Nothing of this table has been run.")
    parts += [listed(notes(every)), "Left open by the paper, and what was chosen:", listed(recipe.open)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _lines(found: Sequence[Line]) -> str:
    rows = [
        [
            line.column,
            line.row,
            line.metric if line.domain is None else f"{line.metric}, {line.domain}",
            len(line.seeds),
            _ours(line),
            "–" if line.theirs is None else _value(line.theirs, line.theirs_std),
            line.verdict.word,
            line.verdict.why,
        ]
        for line in found
    ]
    names = ("column", "row", "measure", "seeds", "ours", "theirs", "verdict", "")
    return tabulate(rows, names, tablefmt="pipe", disable_numparse=True)


def _orders(found: Sequence[OrderLine]) -> str:
    rows = [
        [
            one.column,
            one.metric if one.domain is None else f"{one.metric}, {one.domain}",
            one.verdict.word,
            one.verdict.why,
        ]
        for one in found
    ]
    return tabulate(rows, ("column", "measure", "order", ""), tablefmt="pipe", disable_numparse=True)


def _gains(found: Sequence[Gain]) -> str:
    rows = [
        [
            one.column if one.domain is None else f"{one.column}, {one.domain}",
            one.row,
            one.over,
            len(one.ours),
            *in_words(one),
            one.seen,
        ]
        for one in found
    ]
    names = ("column", "row", "over", "seeds", "ours", "95 % interval", "theirs", "seen")
    return tabulate(rows, names, tablefmt="pipe", disable_numparse=True)


def ratios_of(found: Sequence[Line]) -> dict[tuple[str, str], float]:
    """Of each row of a column that ran and was foreseen: what it took, divided by that."""
    return {
        (line.column, line.row): line.seconds / line.estimated
        for line in found
        if line.seconds is not None and line.estimated
    }


def _costs(found: Sequence[Line]) -> str:
    """Minutes of one core for a run of each row, foreseen and taken; nothing where no run was on one core."""
    rows = []
    ratios = ratios_of(found)
    for line in {(line.column, line.row): line for line in found}.values():
        if line.seconds is None:
            continue
        foreseen = "–" if line.estimated is None else f"{line.estimated / 60:.1f}"
        ratio = ratios.get((line.column, line.row))
        told = "–" if ratio is None else f"{ratio:.2f}"
        rows.append([line.column, line.row, foreseen, f"{line.seconds / 60:.1f}", told])
    names = ("column", "row", "core minutes foreseen", "taken", "ratio")
    return tabulate(rows, names, tablefmt="pipe", disable_numparse=True) if rows else ""


def _ours(line: Line) -> str:
    told = _value(*mean_std(line.ours)) if line.ours else "–"
    return f"{told}, {len(line.ours)} of {len(line.seeds)} seeds" if line.missed else told


def _value(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def listed(texts: Sequence[str]) -> str:
    """As a list of Markdown."""
    return "\n".join(f"- {text}" for text in texts)
