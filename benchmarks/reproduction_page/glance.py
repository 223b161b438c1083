"""Verdicts, orders and gains, counted: the tables "At a glance" of the index and of each paper's page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fedloom.papers.compared_values import compare_orders, compare_values
from fedloom.papers.gains import gains
from fedloom.papers.measurements import Measurement
from fedloom.papers.recipe import Recipe
from reproduction_page.committed import PaperResults
from reproduction_page.setting import setting_of

_VERDICTS = ("reproduced", "near", "not reproduced")
_ORDERS = ("orders reproduced", "orders compared")
_GAINS = ("gains seen", "gains claimed")
_COUNTED = "values reproduced | near | not reproduced | orders reproduced | gains seen |"


def papers_glance(papers: Sequence[PaperResults]) -> str:
    """One line for each paper: how much of it was measured, and what came out."""
    table = [
        f"| paper | tables and figures | run in its own setting | in another setting only | {_COUNTED}",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for paper in papers:
        counts = sum((count(*values) for values in paper.tables), Counter[str]())
        cells = [f"[{paper.title}]({paper.name}.md)", str(len(paper.runnable)), str(len(paper.in_papers_setting))]
        cells.append(str(len(paper.measured - paper.in_papers_setting)))
        table.append(_row([*cells, *_counted(counts)]))
    return "\n".join(table)


def tables_glance(paper: PaperResults) -> str:
    """One line for each table of a paper, and for each setting in which it was run."""
    table = [f"| table | setting | seeds | {_COUNTED}", "|---|---|---|---|---|---|---|---|"]
    for recipe, values in paper.tables:
        setting = re.sub(r"=\{[^}]{40,}\}", "={...}", setting_of(recipe, values))  # the table's section has all of it
        if any(value.stand_in for value in values):
            setting = f"other data, {setting}"
        seeds = sorted({len(value.seeds) for value in compare_values(recipe, values) if value.was_run})
        cells = [recipe.table.title, setting, " or ".join(map(str, seeds))]
        table.append(_row([*cells, *_counted(count(recipe, values))]))
    return "\n".join(table)


def count(recipe: Recipe, measurements: list[Measurement]) -> Counter[str]:
    """Count the verdicts of one table in one setting, if that is the paper's, its orders, and its printed gains."""
    compared = compare_values(recipe, measurements)
    counts: Counter[str] = Counter()
    if all(measurement.comparable for measurement in measurements):
        counts.update(value.verdict.word for value in compared if value.was_run)
        counts["values compared"] = sum(counts[word] for word in _VERDICTS)
    verdicts = [order.verdict.word for order in compare_orders(compared) if order.agreement and order.agreement.enough]
    counts.update({"orders compared": len(verdicts), "orders reproduced": verdicts.count("order reproduced")})
    claimed = [gain for gain in gains(recipe, compared) if (gain.theirs or 0) > 0 and len(gain.ours) > 1]
    counts.update({"gains claimed": len(claimed), "gains seen": sum(gain.outcome == "ahead" for gain in claimed)})
    return counts


def _counted(counts: Counter[str]) -> list[str]:
    """The last five cells of a line; a dash where nothing was compared."""
    cells = [str(counts[word]) if counts["values compared"] else "–" for word in _VERDICTS]
    for hits, whole in (_ORDERS, _GAINS):
        cells.append(f"{counts[hits]} of {counts[whole]}" if counts[whole] else "–")
    return cells


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
