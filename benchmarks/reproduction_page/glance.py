"""Verdicts, orders and gains, counted: the tables "At a glance" of the index and of each paper's page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fedloom.papers.beside import lines, orders
from fedloom.papers.gains import gains
from fedloom.papers.measured import Measured
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
        seeds = sorted({len(line.seeds) for line in lines(recipe, values) if line.run})
        cells = [recipe.table.title, setting, " or ".join(map(str, seeds))]
        table.append(_row([*cells, *_counted(count(recipe, values))]))
    return "\n".join(table)


def count(recipe: Recipe, values: list[Measured]) -> Counter[str]:
    """Count the verdicts of one table in one setting, if that is the paper's, its orders, and its printed gains."""
    compared = lines(recipe, values)
    counts: Counter[str] = Counter()
    if all(value.comparable for value in values):
        counts.update(line.verdict.word for line in compared if line.run)
        counts["values compared"] = sum(counts[word] for word in _VERDICTS)
    verdicts = [order.verdict.word for order in orders(compared) if order.found and order.found.enough]
    counts.update({"orders compared": len(verdicts), "orders reproduced": verdicts.count("order reproduced")})
    claimed = [gain for gain in gains(recipe, compared) if (gain.theirs or 0) > 0 and len(gain.ours) > 1]
    counts.update({"gains claimed": len(claimed), "gains seen": sum(gain.seen == "ahead" for gain in claimed)})
    return counts


def _counted(counts: Counter[str]) -> list[str]:
    """The last five cells of a line; a dash where nothing was compared."""
    cells = [str(counts[word]) if counts["values compared"] else "–" for word in _VERDICTS]
    for hits, whole in (_ORDERS, _GAINS):
        cells.append(f"{counts[hits]} of {counts[whole]}" if counts[whole] else "–")
    return cells


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
