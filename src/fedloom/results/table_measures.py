"""Columns of a table for a paper: how a measure is read from runs, its unit, and its decimals. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import is_share, seeds_share, unit
from fedloom.results.clients import selected_accuracies, worst
from fedloom.results.group import Group
from fedloom.results.measured import display_name, higher_is_better, maybe_by_seed, measures_of
from fedloom.results.statistics import mean_std

Units = Literal["percent", "share"]
_BYTES = {"up": "bytes_up", "down": "bytes_down"}
_OF_RUNS = ("best_val", "worst10", "up", "down", "time", "n")
_STEPS = {
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "time": ((3600.0, "h"), (60.0, "min"), (1.0, "s")),
}


@dataclass(frozen=True, slots=True)
class TableMeasure:
    """A measure as a column.

    Attributes:
        name: of the measure.
        words: its heading, with the unit.
        values: of each group, one value a seed, as stored; None where it is not defined.
        scale: by what a value is multiplied to be read.
        decimals: of the number that is read.
        tested: whether it is a score, with a spread over seeds and a best row.
        higher: whether the highest value is the best; None if that is not known, so that no row is the best.
    """

    name: str
    words: str
    values: list[list[float | None]]
    scale: float
    decimals: int
    tested: bool = True
    higher: bool | None = None

    @property
    def complete(self) -> list[list[float] | None]:
        """The values of each group; None where a seed lacks it, so that the group is compared with no other."""
        return [None if None in values else self.defined(index) for index, values in enumerate(self.values)]

    @property
    def lower(self) -> bool:
        """Whether the lowest value is the best."""
        return self.higher is False

    @property
    def ranked(self) -> bool:
        """Whether a best row is marked."""
        return self.is_score and self.higher is not None

    @property
    def is_score(self) -> bool:
        """Whether it says how good a method is: the accuracy of the most frequent class is a property of the data."""
        return self.tested and not self.name.startswith("majority_")

    def defined(self, index: int) -> list[float]:
        """Return the values of the seeds of a group where the measure is defined."""
        return [value for value in self.values[index] if value is not None]

    def text(self, index: int) -> str:
        """Return the mean of a group over its seeds, with its spread for a score, and their number if some lack it."""
        defined = self.defined(index)
        if not defined:
            return "–"
        mean, std = mean_std([self.scale * value for value in defined])
        text = f"{mean:,.{self.decimals}f}"
        text = text if std is None or not self.tested else f"{text} ± {std:.{self.decimals}f}"
        return text + seeds_share(len(defined), len(self.values[index]))


def table_measure(name: str, groups: Sequence[Group], units: Units) -> TableMeasure:
    """Return a measure as a column. Raises `ConfigError` if no run has it.

    Args:
        name: name of the measure.
        groups: the rows, each a group of runs that differ in the seed only.
        units: "percent" or "share", for measures in [0, 1].
    """
    known = [*measures_of(groups), *_OF_RUNS]
    if name not in known:
        raise ConfigError(f"--cells {short_repr(name)}: no run has it; {suggest_name(name, known)}")
    values = [_values(group, name) for group in groups]
    if name in _BYTES or name == "time":
        size, words = _step("time" if name == "time" else "bytes", values)
        return TableMeasure(name, f"{name} ({words})", values, 1 / size, 2 if words in ("GB", "MB", "h") else 1, False)
    if name == "n":
        return TableMeasure(name, "n", values, 1.0, 0, False)
    words, higher = display_name(name), higher_is_better(name, groups)
    if is_share(name):
        scale, decimals, unit_words = (100.0, 1, "%") if units == "percent" else (1.0, 3, "share")
        return TableMeasure(name, f"{words} ({unit_words})", values, scale, decimals, higher=higher)
    words += f" ({unit(name)})" if unit(name) else ""
    return TableMeasure(name, words, values, 1.0, 3, higher=higher)


def _values(group: Group, name: str) -> list[float | None]:
    runs = [run.numbers for run in group.results]
    match name:
        case "n":
            return [float(group.row["n"])]
        case "time":
            return [float(numbers["seconds"]["total"]) for numbers in runs]
        case "up" | "down":
            return [float(numbers[_BYTES[name]]) for numbers in runs]
        case "best_val":
            return [numbers["best_val_accuracy"] for numbers in runs]
        case "worst10":
            return [worst(list(selected_accuracies(run).values())) for run in group.results]
        case _:
            return maybe_by_seed(group, name)


def _step(kind: str, values: Sequence[Sequence[float | None]]) -> tuple[float, str]:
    """Return the unit in which the largest mean of a column is at least one."""
    largest = max((fmean(value or 0.0 for value in of_group) for of_group in values), default=0.0)
    steps = _STEPS[kind]
    return next((step for step in steps if largest >= step[0]), steps[-1])
