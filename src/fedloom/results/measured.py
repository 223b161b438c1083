"""Measures of runs: their names, and their values over seeds. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import number_text, unit
from fedloom.results.group import Group
from fedloom.results.statistics import mean_std


def display_name(measure: str) -> str:
    """Return the name of a measure for people, "balanced accuracy"."""
    return _NAMES.get(measure, measure.replace("_", " "))


def words_of(measure: str) -> str:
    """Return a measure for the label of an axis, with its unit: "test accuracy (%)"."""
    name = display_name(measure)
    return f"test {name} ({unit(measure)})" if unit(measure) else f"test {name}"


def values_by_seed(group: Group, measure: str) -> list[float] | None:
    """Return a measure at the selected round, in the order of the row's seeds; None if a seed lacks it."""
    values = maybe_by_seed(group, measure)
    return None if None in values else [value for value in values if value is not None]


def maybe_by_seed(group: Group, measure: str) -> list[float | None]:
    """Return a measure at the selected round, in the order of the row's seeds; None for a seed that lacks it."""
    if measure == "accuracy":
        return list(group.row["by_seed"])
    return [_value(run.numbers, measure) for run in group.results]


def mean_text(measure: str, values: Sequence[float]) -> str:
    """Return mean and sample standard deviation in the unit of the measure, "73.3 ± 10.5"."""
    mean, std = mean_std(values)
    text = number_text(measure, mean)
    return text if std is None else f"{text} ± {number_text(measure, std)}"


def measures_of(groups: Sequence[Group]) -> list[str]:
    """Return the names of all measures that some run has, accuracy first."""
    names = ["accuracy"]
    for group in groups:
        for run in group.results:
            names += [name for name in run.numbers.get("metrics", {}) if name not in names]
    return names


def higher_is_better(measure: str, groups: Sequence[Group]) -> bool | None:
    """Return whether the highest value of a measure is the best; None if no run says so, or runs contradict."""
    answers = {run.higher_is_better(measure) for group in groups for run in group.results} - {None}
    return answers.pop() if len(answers) == 1 else None


def check_measure(measure: str, names: Sequence[str]) -> None:
    """Raise `ConfigError` if a measure is not among the `names` that the runs have."""
    if measure not in names:
        raise ConfigError(f"metric = {short_repr(measure)}: no run has it; {suggest_name(measure, names)}")


_NAMES = {"auroc": "AUROC", "macro_f1": "macro F1", "weighted_f1": "weighted F1", "ece": "ECE", "nll": "NLL"}
_NAMES |= {"best_val": "best val", "worst10": "worst 10 % of clients"}


def _value(numbers: Mapping[str, Any], measure: str) -> float | None:
    value = (numbers.get("metrics") or {}).get(measure)
    return None if value is None else float(value)
