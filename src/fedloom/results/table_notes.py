"""The columns of a table for a paper, and the sentences below it. Needs no torch."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import (
    counted,
    is_share,
    listed,
    lists_by_key,
    percent,
    seed_counts_text,
    seeds_share,
    seeds_text,
    unit,
)
from fedloom.results import group as grouping
from fedloom.results.comparability import same_runs_notes
from fedloom.results.difference import LEVEL, MIN_SEEDS
from fedloom.results.pairs import POOLED, family_note, untested_rows
from fedloom.results.risk_words import risk_sentences

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

    `values` has the stored value of each group and seed, or None; `scale` makes the printed one. A `tested` measure is
    a score with a spread over seeds. `higher`: whether the highest is the best; None if unknown, so no row is bold."""

    name: str
    words: str
    values: list[list[float | None]]
    scale: float
    decimals: int
    tested: bool = True
    higher: bool | None = None

    @property
    def complete(self) -> list[list[float] | None]:
        """The values of each group; None where a seed lacks the measure, which excludes the group from comparisons."""
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
        mean, std = grouping.mean_std([self.scale * value for value in defined])
        text = f"{mean:,.{self.decimals}f}"
        text = text if std is None or not self.tested else f"{text} ± {std:.{self.decimals}f}"
        return text + seeds_share(len(defined), len(self.values[index]))


def table_measure(name: str, groups: Sequence[grouping.Group], units: Units) -> TableMeasure:
    """Return the measure `name` of the `groups` as a column, a share in percent or as it is (`units`). Raises
    `ConfigError` if no run has it."""
    known = [*grouping.measures_of(groups), *_OF_RUNS]
    if name not in known:
        raise ConfigError(f"--cells {short_repr(name)}: no run has it; {suggest_name(name, known, 'metric')}")
    values = [_values(group, name) for group in groups]
    if name in _BYTES or name == "time":
        size, words = _step("time" if name == "time" else "bytes", values)
        return TableMeasure(name, f"{name} ({words})", values, 1 / size, 2 if words in ("GB", "MB", "h") else 1, False)
    if name == "n":
        return TableMeasure(name, "n", values, 1.0, 0, False)
    words, higher = grouping.display_name(name), grouping.higher_is_better(name, groups)
    if is_share(name):
        scale, decimals, unit_words = (100.0, 1, "%") if units == "percent" else (1.0, 3, "share")
        return TableMeasure(name, f"{words} ({unit_words})", values, scale, decimals, higher=higher)
    words += f" ({unit(name)})" if unit(name) else ""
    return TableMeasure(name, words, values, 1.0, 3, higher=higher)


def _values(group: grouping.Group, name: str) -> list[float | None]:
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
            return [grouping.worst(list(grouping.selected_accuracies(run).values())) for run in group.results]
        case _:
            return grouping.maybe_by_seed(group, name)


def _step(kind: str, values: Sequence[Sequence[float | None]]) -> tuple[float, str]:
    """Return the unit in which the largest mean of a column is at least one."""
    largest = max((fmean(value or 0.0 for value in of_group) for of_group in values), default=0.0)
    steps = _STEPS[kind]
    return next((step for step in steps if largest >= step[0]), steps[-1])


def notes_of(
    groups: Sequence[grouping.Group], measures: Sequence[TableMeasure], best: Sequence[Collection[int]], against: str
) -> list[str]:
    """Return a table's notes. best: the bold groups by measure. against: the method of differences, or empty."""
    counts = [group.row["n"] for group in groups]
    seeds = seed_counts_text(counts)
    protocols = dict.fromkeys(group.row["protocol"] for group in groups)
    selections = dict.fromkeys(group.row["select"] for group in groups)
    spread = "Mean ± sample standard deviation" if max(counts) > 1 else "Values"
    notes = [f"{spread} over {seeds}; {_named('protocol', protocols)}, {_named('selected round:', selections)}."]
    if any(best):
        notes.append(
            f"Bold: methods that no other one of their setting{' and protocol' if len(protocols) > 1 else ''} is ahead "
            f"of, over all pairs (weighted Holm, {100 * (1 - LEVEL):.0f} %)."
        )
    elif any(measure.ranked for measure in measures) and len(groups) > 1:
        notes.append(f"Nothing is bold: with {MIN_SEEDS} seeds or more, no two rows of a setting are told apart.")
    unknown = [
        grouping.display_name(measure.name) for measure in measures if measure.is_score and measure.higher is None
    ]
    if unknown:
        notes.append(f"Nothing is bold by {listed(unknown)}: no run says whether the highest value is the best.")
    if against:
        notes.append(
            f"Differences from {against} over common seeds; the {100 * LEVEL:.0f} % t intervals stand alone, the p "
            f"values are adjusted. {family_note([group.row for group in groups])}"
        )
    notes += _majority(groups)
    pooled = dict.fromkeys(group.row["label"] for group in groups if group.row["method"] == POOLED)
    if pooled:
        notes.append(f"{listed(pooled)}: trained on pooled data, not ranked.")
    return notes + _devices(groups) + _ended_early(groups)


def run_notes(groups: Sequence[grouping.Group]) -> list[str]:
    """Return a sentence for each run that ended early, and for the runs that a row leaves out."""
    notes: list[str] = []
    for group in groups:
        row = group.row
        if group.is_further:  # the row of the main protocol says it
            continue
        notes += [f"{row['label']}: {reason}." for reason in row["stopped"]]
        if again := group.results[0].numbers.get("evaluation"):
            notes.append(f"{row['label']}: tested after training (evaluation {again.get('digest')}), {row['select']}.")
        seed = f", seed {row['seeds'][0]}" if row["n"] > 1 else ""
        notes += [f"{row['label']}{seed}: {sentence}" for sentence in risk_sentences(group.results[0].numbers)]
        if row["repeats"]:
            notes.append(f"{row['label']}: {counted(row['repeats'], 'run')} left out, whose seed is already counted.")
    return notes


def _devices(groups: Sequence[grouping.Group]) -> list[str]:
    labels_by_device: dict[str, dict[str, None]] = {}
    for group in groups:
        for run in group.results:
            labels_by_device.setdefault(run.numbers.get("device", "cpu"), {})[group.row["label"]] = None
    if [*labels_by_device] in ([], ["cpu"]):
        return []
    if len(labels_by_device) == 1:
        return [f"Trained on {next(iter(labels_by_device))}."]
    devices = "; ".join(f"{listed(labels)} on {device}" for device, labels in labels_by_device.items())
    return [f"Trained on several devices, whose numbers differ by rounding: {devices}."]


def _ended_early(groups: Sequence[grouping.Group]) -> list[str]:
    seeds_by_row = {
        group.row["label"]: [run.numbers["seed"] for run in group.results if run.numbers.get("stopped")]
        for group in groups
        if not group.is_further
    }
    named = [f"{label} ({seeds_text(seeds)})" for label, seeds in seeds_by_row.items() if seeds]
    return [f"Ended early: {listed(named)}."] if named else []


def comparison_notes(
    groups: Sequence[grouping.Group],
    contexts: Sequence[str],
    measures: Sequence[TableMeasure],
    best: Sequence[Collection[int]],
    places: Sequence[Hashable],
) -> list[str]:
    """Return sentences on missing comparisons of `groups`: rows of other settings, too few seeds, and equal runs.

    contexts: the setting and protocol in which each group compares. best: of each of the measures, the bold groups.
    places: the part of the table in which readers compare."""
    labels = [group.row["label"] for group in groups]
    notes = []
    if len({*zip(places, contexts, strict=True)}) > len({*places}):
        labels_by_context = lists_by_key(zip(contexts, labels, strict=True)).items()
        told = "; ".join(f"{context}: {listed(of)}" if context else listed(of) for context, of in labels_by_context)
        notes.append(f"Compared only among themselves: {told}.")
    untested = {
        index
        for measure, indices in zip(measures, best, strict=True)
        if indices
        for index in untested_rows(groups, contexts, measure.complete, measure.lower)
    }
    if untested:
        notes.append(
            f"Not compared, with fewer than {MIN_SEEDS} seeds in common with another row: "
            f"{listed(labels[index] for index in sorted(untested))}."
        )
    return notes + [f"{note}." for note in same_runs_notes([group.row for group in groups])]


def _named(noun: str, names: Collection[str]) -> str:
    """Return names with their noun, "protocols global/local and personal/local"."""
    plural = "s" if len(names) > 1 and not noun.endswith(":") else ""
    return f"{noun}{plural} {listed(names)}"


def _majority(groups: Sequence[grouping.Group]) -> list[str]:
    """Return what always predicting the most frequent class reaches, of each client's own data for personal models."""
    shares: dict[str, list[float]] = {}
    for group in groups:
        metrics = group.row["metrics"]
        own = ["majority_own"] if group.row["protocol"].startswith("personal/") else []
        name = next((name for name in (*own, "majority_global") if name in metrics), None)
        if name is not None:
            shares.setdefault(name, []).append(metrics[name])
    return [
        f"Always predicting {_MAJORITY[name]} reaches {_range(values)} % accuracy." for name, values in shares.items()
    ]


_MAJORITY = {
    "majority_global": "the most frequent class",
    "majority_own": "the most frequent class of each client's own data",
}


def _range(shares: Sequence[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"
