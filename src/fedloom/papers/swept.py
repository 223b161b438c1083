"""Accuracy by one option: a section of the page, from the rows of a `sweep` figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedloom.papers.drawn import Row, section
from fedloom.papers.gains import Gain, in_words
from fedloom.papers.page import number
from fedloom.papers.recipe import Recipe
from fedloom.study.results import mean_std


def swept_markdown(recipe: Recipe, found: Sequence[Row]) -> str:
    """Accuracy at each value of the axis, and what that gains over the first value, seed by seed."""
    rows = []
    for panel, name in dict.fromkeys((one["panel"], one["row"]) for one in found):
        runs: dict[str, dict[str, float]] = {}
        for one in found:
            if (one["panel"], one["row"]) == (panel, name):
                runs.setdefault(one["x"], {})[one["seed"]] = float(one["accuracy"])
        first = next(iter(runs))
        for x, own in runs.items():
            told = number(*mean_std(list(own.values())))
            rows.append([panel, name, x, len(own), told, *_gain(x, own, first, runs[first])])
    axis = recipe.table.axis
    told = f"Gains are in points, seed by seed, over the first {axis} of each setting."
    names = ("setting", "row", axis, "seeds", "accuracy %", "gain", "95 % interval", "seen")
    return section(recipe, found, [told], names, rows)


def _gain(x: str, own: Mapping[str, float], first: str, least: Mapping[str, float]) -> tuple[str, str, str]:
    """Mean, interval, and what may be said of it; dashes for the first value itself, and without a seed in common."""
    seeds = sorted(own.keys() & least.keys())
    if x == first or not seeds:
        return "–", "–", "–"
    gain = Gain(x, None, x, first, [own[seed] - least[seed] for seed in seeds], None)
    mean, inside, _ = in_words(gain)
    return mean, inside, gain.seen
