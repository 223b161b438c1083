"""Verdicts, orders and gains, counted: the tables "At a glance" of the index and of each paper's page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fedloom.papers.compared_values import compare_orders, compare_values
from fedloom.papers.gains import Gain, count_gains, gains
from fedloom.papers.measurements import Measurement
from fedloom.papers.recipe import Recipe
from reproduction_page.committed import PaperResults
from reproduction_page.setting import setting_of

_VERDICTS = ("reproduced", "differs", "undecided")
_ORDERS = ("order reproduced", "order differs", "undecided order")
_COUNTED = "values: reproduced / differs / undecided | orders: the same | own gains seen | baselines' gains seen |"


def papers_glance(papers: Sequence[PaperResults]) -> str:
    """One line for each paper: how much of it was measured, and what came out."""
    table = [
        f"| paper | tables and figures | run in its own setting | in another setting only | {_COUNTED}",
        "|---|---|---|---|---|---|---|---|",
    ]
    for paper in papers:
        counts = sum((count(*values) for values in paper.tables), Counter[str]())
        cells = [f"[{paper.title}]({paper.name}.md)", str(len(paper.runnable)), str(len(paper.in_papers_setting))]
        cells.append(str(len(paper.measured - paper.in_papers_setting)))
        table.append(_row([*cells, *_counted(counts)]))
    return "\n".join(table)


def tables_glance(paper: PaperResults) -> str:
    """One line for each table of a paper, and for each setting in which it was run."""
    table = [f"| table | setting | seeds | {_COUNTED}", "|---|---|---|---|---|---|---|"]
    for recipe, values in paper.tables:
        setting = re.sub(r"=\{[^}]{40,}\}", "={...}", setting_of(values))  # the table's section has all of it
        if any(value.stand_in for value in values):
            setting = f"other data, {setting}"
        seeds = sorted({len(value.seeds) for value in compare_values(recipe, values) if value.was_run})
        cells = [recipe.table.title, setting, " or ".join(map(str, seeds))]
        table.append(_row([*cells, *_counted(count(recipe, values))]))
    return "\n".join(table)


def count(recipe: Recipe, measurements: list[Measurement]) -> Counter[str]:
    """Count the verdicts of one table in one setting, its orders, and its printed gains."""
    compared = compare_values(recipe, measurements)
    counts = Counter[str](value.verdict.word for value in compared if value.was_run)
    counts["values compared"] = sum(counts[word] for word in _VERDICTS)
    orders = [
        _ORDERS[2] if order.verdict.word == "undecided" else order.verdict.word
        for order in compare_orders(recipe, compared)
        if order.counts
    ]
    counts["orders compared"] = len(orders)
    counts.update(orders)
    computed = gains(recipe, compared)
    for group in ("own", "baselines"):
        total = count_gains(computed, group)
        counts.update({f"{group} seen": total.seen, f"{group} contradicted": total.contradicted})
        counts[f"{group} judged"] = total.judged
    return counts


def gains_of(paper: PaperResults) -> list[Gain]:
    """All gains of a paper's tables."""
    return [gain for recipe, values in paper.tables for gain in gains(recipe, compare_values(recipe, values))]


def _counted(counts: Counter[str]) -> list[str]:
    """The last cells of a line; a dash where nothing was compared."""
    cells = [" / ".join(str(counts[word]) for word in _VERDICTS) if counts["values compared"] else "–"]
    cells.append(" / ".join(str(counts[word]) for word in _ORDERS) if counts["orders compared"] else "–")
    for group in ("own", "baselines"):
        judged, contradicted = counts[f"{group} judged"], counts[f"{group} contradicted"]
        cells.append(f"{counts[f'{group} seen']} of {judged}, {contradicted} contradicted" if judged else "–")
    return cells


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
