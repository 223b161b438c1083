"""Accuracy by one option: a section of a page, from the rows of a `sweep` figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedloom.papers.recipe import Recipe
from fedloom.papers.table_section import number
from fedloom.papers.verdicts import STEP
from fedloom.results.difference import Difference, compare_family
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
        outcomes = _outcomes(by_value, first)
        for x, by_seed in by_value.items():
            accuracy = number(*mean_std(list(by_seed.values())))
            table_rows.append([panel, method, x, len(by_seed), accuracy, *_gain_texts(outcomes.get(x))])
    axis = recipe.table.axis
    explanation = [f"Gains are in points, seed by seed, over the first {axis} of each setting."]
    headers = ("setting", "row", axis, "seeds", "accuracy %", "gain", "95 % interval", "word")
    return figure_section(recipe, rows, explanation, headers, table_rows)


def _outcomes(by_value: Mapping[str, Mapping[str, float]], first: str) -> dict[str, Difference]:
    """Compare all values of the axis with the first one, as one family; without those that share no seed with it."""
    baseline = by_value[first]
    differences = {
        x: [by_seed[seed] - baseline[seed] for seed in sorted(by_seed.keys() & baseline.keys())]
        for x, by_seed in by_value.items()
        if x != first
    }
    compared = {x: values for x, values in differences.items() if values}
    return dict(zip(compared, compare_family(list(compared.values()), STEP), strict=True))


def _gain_texts(outcome: Difference | None) -> tuple[str, str, str]:
    """Mean, interval and word; dashes where there is no comparison."""
    if outcome is None:
        return "–", "–", "–"
    return f"{outcome.mean:+.2f}", outcome.interval_text(decimals=2), outcome.verdict
