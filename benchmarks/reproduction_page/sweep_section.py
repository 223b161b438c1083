"""Accuracy by one option: a section of a page, from the rows of a `sweep` figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedloom.papers.gains import Gain, gain_texts
from fedloom.papers.recipe import Recipe
from fedloom.papers.table_section import number
from fedloom.results.statistics import mean_std
from reproduction_page.figure_rows import CsvRow, figure_section


def sweep_section(recipe: Recipe, rows: Sequence[CsvRow]) -> str:
    """Accuracy at each value of the axis, and its gain over the first value, seed by seed."""
    table_rows = []
    for panel, method in dict.fromkeys((row["panel"], row["row"]) for row in rows):
        by_value: dict[str, dict[str, float]] = {}
        for row in rows:
            if (row["panel"], row["row"]) == (panel, method):
                by_value.setdefault(row["x"], {})[row["seed"]] = float(row["accuracy"])
        first = next(iter(by_value))
        for x, by_seed in by_value.items():
            accuracy = number(*mean_std(list(by_seed.values())))
            table_rows.append([panel, method, x, len(by_seed), accuracy, *_gain(x, by_seed, first, by_value[first])])
    axis = recipe.table.axis
    explanation = [f"Gains are in points, seed by seed, over the first {axis} of each setting."]
    headers = ("setting", "row", axis, "seeds", "accuracy %", "gain", "95 % interval", "seen")
    return figure_section(recipe, rows, explanation, headers, table_rows)


def _gain(x: str, by_seed: Mapping[str, float], first: str, baseline: Mapping[str, float]) -> tuple[str, str, str]:
    """Mean, interval, and what may be said of it; dashes for the first value itself, and without a seed in common."""
    seeds = sorted(by_seed.keys() & baseline.keys())
    if x == first or not seeds:
        return "–", "–", "–"
    gain = Gain(x, None, x, first, [by_seed[seed] - baseline[seed] for seed in seeds], None)
    mean, interval, _ = gain_texts(gain)
    return mean, interval, gain.outcome
