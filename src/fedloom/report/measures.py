"""Plain data for the charts, taken from stored rows. Nothing here needs torch or matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from fedloom.results.clients import client_accuracies
from fedloom.results.mean_curves import mean_curve
from fedloom.results.table import Group, ResultRow, protocols_of
from fedloom.results.verdict import BASELINE
from fedloom.storage.log import CALLBACK_SPLIT
from fedloom.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class Line:
    """One measure by round: mean over seeds, mean ± sample std where there are several, and every seed's own values."""

    label: str
    tone: int  # number of the group, which gives its colour
    rounds: list[int]
    mean: list[float]
    std: list[float] | None
    seeds: list[list[float]]


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart: parts that add up, and their sum as text."""

    label: str
    parts: list[float]
    total: str


@dataclass(frozen=True, slots=True)
class Dots:
    """One row of a dot chart: values in [0, 1], one per client and seed."""

    label: str
    tone: int
    values: list[float]


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
    """Test accuracy of each client at the last tested round, all seeds together."""
    return [value for result in results for value in client_accuracies(result.rows).values()]


def tones(rows: Sequence[ResultRow]) -> list[int]:
    """A colour number per row: 0 for the baseline, 1, 2, ... for the others in order, the same in all protocols."""
    runs = [(row["cell"], row["method"], row["preset"], row["select"], str(row["setting"])) for row in rows]
    baseline = next((run for run, row in zip(runs, rows, strict=True) if row["method"] == BASELINE), None)
    others = iter(range(1, len(rows) + 1))
    tone_of = {run: 0 if run == baseline else next(others) for run in dict.fromkeys(runs)}
    return [tone_of[run] for run in runs]


def by_protocol(groups: Sequence[Group]) -> list[tuple[str, list[tuple[Group, int]]]]:
    """The groups of each protocol with their colour numbers, after a title that is empty if there is one protocol."""
    toned, protocols = list(zip(groups, tones([group.row for group in groups]), strict=True)), protocols_of(groups)
    return [
        (
            f"Protocol {protocol}" if len(protocols) > 1 else "",
            [(group, tone) for group, tone in toned if group.row["protocol"] == protocol],
        )
        for protocol in protocols
    ]
