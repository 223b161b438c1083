"""What methods send and compute until a target accuracy: a section of the page, from the rows of a `costs` figure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from fedloom.papers.drawn import Row, section
from fedloom.papers.recipe import Recipe


def spent_markdown(recipe: Recipe, found: Sequence[Row]) -> str:
    """Megabytes and FLOPs until the target, and how many times what the paper's own method takes over equal seeds."""
    own = recipe.paper.paper
    rows = []
    for panel, x in dict.fromkeys((one["panel"], one["x"]) for one in found):
        here = [one for one in found if (one["panel"], one["x"]) == (panel, x)]
        base = [one for one in here if one["row"] == own]
        for name in dict.fromkeys(one["row"] for one in here):
            runs = [one for one in here if one["row"] == name]
            rows.append(
                [
                    f"{panel}, {x}",
                    name,
                    len(runs),
                    *(f"{_mean(runs, key):.2f}" for key in ("accuracy", "target")),
                    f"{_mean(runs, 'bytes') / 1e6:.2f}",
                    _times(runs, base, "bytes"),
                    f"{_mean(runs, 'flops') / 1e12:,.1f}",
                    _times(runs, base, "flops"),
                ]
            )
    names = ("setting", "row", "seeds", "accuracy %", "target %", "MB", f"of {own}'s", "TFLOPs", f"of {own}'s")
    told = [
        "Accuracy at the end; MB up and down, and TFLOPs, of all clients until the first test at the target.",
        f"Means are over the row's seeds, multiples over those that {own} has too.",
    ]
    return section(recipe, found, told, names, rows)


def _mean(runs: Sequence[Row], key: str) -> float:
    return fmean(float(one[key]) for one in runs)


def _times(runs: Sequence[Row], base: Sequence[Row], key: str) -> str:
    """How many times what `base` took, over the seeds of both; a dash where there are none, or it took nothing."""
    seeds = {one["seed"] for one in runs} & {one["seed"] for one in base}
    ours, least = ([one for one in rows if one["seed"] in seeds] for rows in (runs, base))
    return f"{_mean(ours, key) / _mean(least, key):.2f} x" if seeds and _mean(least, key) else "–"
