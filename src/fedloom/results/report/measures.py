"""Plain data for the charts, taken from stored rows. Nothing here needs torch or matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from fedloom.results.clients import selected_accuracies
from fedloom.results.mean_curves import mean_curve
from fedloom.runs.storage.log import CALLBACK_SPLIT
from fedloom.runs.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class Line:
    """One measure by round: mean over seeds, mean ± sample std where there are several, and every seed's own values."""

    label: str
    tone: int  # number of the group, which gives its colour
    rounds: list[int]
    mean: list[float]
    std: list[float] | None
    seeds: list[list[float]]
    faint: bool = False  # drawn thin and grey, because there are too many lines


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart: parts that add up, and their sum as text."""

    label: str
    parts: list[float]
    total: str


@dataclass(frozen=True, slots=True)
class Dots:
    """One row of a dot chart: values in [0, 1], one per client and seed, and the majority baseline if it is known."""

    label: str
    tone: int
    values: list[float]
    majority: float | None = None


def line(label: str, tone: int, results: Sequence[RunData], name: str, split: str) -> Line | None:
    """Return a measure over the rounds in which all runs have a finite value; None where there is no such round.

    Args:
        label: name of the line.
        tone: index of its colour.
        results: runs that differ in their seed.
        name: name of the measure.
        split: split of the measure, as in `curve`.
    """
    mean = mean_curve(results, name, split)
    return None if mean is None else Line(label, tone, mean.rounds, mean.mean, mean.std, mean.seeds)


def terms(results: Sequence[RunData]) -> list[str]:
    """Names of the loss terms that training logged, in order of appearance."""
    return list(dict.fromkeys(r["name"] for result in results for r in result.rows if r["split"] == "train"))


def diverged(results: Sequence[RunData]) -> dict[str, int]:
    """Measures that were not finite, with the first such round; not those of callbacks, where NaN stands for none."""
    first: dict[str, int] = {}
    for result in results:
        for row in result.rows:
            if not isfinite(row["value"]) and row["split"] != CALLBACK_SPLIT:
                name = f"{row['split']} {row['name']}"
                first[name] = min(row["round"], first.get(name, row["round"]))
    return first


def all_clients(results: Sequence[RunData]) -> list[float]:
    """Test accuracy of each client at the selected round, all seeds together."""
    return [value for result in results for value in selected_accuracies(result).values()]
