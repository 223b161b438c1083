"""What methods send and compute until a target accuracy: a section of a page, from the rows of a `costs` figure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedloom.papers.recipe import Recipe
from reproduction_page.figure_rows import CsvRow, figure_section


def cost_section(recipe: Recipe, rows: Sequence[CsvRow]) -> str:
    """Megabytes and FLOPs until the target, and their ratio to those of the paper's own method over equal seeds."""
    paper = recipe.paper.title
    table_rows = []
    for panel, x in dict.fromkeys((row["panel"], row["x"]) for row in rows):
        in_setting = [row for row in rows if (row["panel"], row["x"]) == (panel, x)]
        baseline = [row for row in in_setting if row["row"] == paper]
        for method in dict.fromkeys(row["row"] for row in in_setting):
            runs = [row for row in in_setting if row["row"] == method]
            table_rows.append(
                [
                    f"{panel}, {x}",
                    method,
                    len(runs),
                    *(f"{_mean(runs, key):.2f}" for key in ("accuracy", "target")),
                    f"{_mean(runs, 'bytes') / 1e6:.2f}",
                    _ratio(runs, baseline, "bytes"),
                    f"{_mean(runs, 'flops') / 1e12:,.1f}",
                    _ratio(runs, baseline, "flops"),
                ]
            )
    headers = ("setting", "row", "seeds", "accuracy %", "target %", "MB", f"of {paper}'s", "TFLOPs", f"of {paper}'s")
    explanation = [
        "Accuracy is that at the end. MB (up and down) and TFLOPs are those of all clients until the first test at the "
        f"target. Means are over the row's seeds, multiples over the seeds that {paper} has too."
    ]
    return figure_section(recipe, rows, explanation, headers, table_rows)


def _mean(runs: Sequence[CsvRow], key: str) -> float:
    return fmean(float(run[key]) for run in runs)


def _ratio(runs: Sequence[CsvRow], baseline: Sequence[CsvRow], key: str) -> str:
    """The ratio to `baseline` over the seeds of both; a dash where they share no seed, or the baseline is zero."""
    seeds = {run["seed"] for run in runs} & {run["seed"] for run in baseline}
    ours, theirs = ([run for run in rows if run["seed"] in seeds] for rows in (runs, baseline))
    return f"{_mean(ours, key) / _mean(theirs, key):.2f} x" if seeds and _mean(theirs, key) else "–"
