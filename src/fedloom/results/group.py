"""Runs that differ in the seed only, and their measures over seeds. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isfinite, nan
from statistics import fmean, stdev
from typing import TypedDict

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.text import number_text, unit
from fedloom.runs.storage.log import Row, main_protocol
from fedloom.runs.storage.run_data import Plan, RunData

MAIN_PROTOCOL = "main_protocol"  # in the numbers of a run's views in further protocols


class ResultRow(TypedDict):
    """One group of runs. Accuracies are shares in [0, 1]; bytes and seconds are means per run."""

    label: str  # the row's name in its study; else the method, with the settings that distinguish it from other rows
    cell: tuple[str, str] | None  # its setting and row in its study; None for runs of no study, or of several
    plan: Plan  # what its study fixed before it ran
    method: str
    preset: str
    protocol: str
    select: str
    setting: dict[str, str]  # further config keys in which the rows differ, e.g. {"scenario.alpha": "0.1"}
    tuned: list[str]  # config keys that were tuned for this method
    n: int
    seeds: list[int]
    by_seed: list[float]  # accuracy, in the order of `seeds`
    accuracy: float
    std: float | None  # sample standard deviation over seeds; None for one seed
    step: float  # smallest step of the accuracy: one test sample more
    best_val: float | None  # mean test accuracy at the round of best validation accuracy; None without validation data
    bytes_up: float
    bytes_down: float
    seconds: float
    phases: dict[str, float]  # seconds of train, evaluate, aggregate, move, checkpoint
    peak_memory_mb: float  # MiB, the largest of the group
    figures: dict[str, float]  # the method's own figures, e.g. epsilon, the largest of the group
    degenerate: list[str]  # diagnostics, without the method's name
    diverged: list[int]  # seeds of runs whose loss was not finite; their accuracy means nothing
    stopped: list[str]  # runs that a callback ended early: seed, round, reason
    repeats: int  # runs left out because another run had the same seed
    attack: str | None  # attack and its share of clients, "label-flip 0.2"; None without an attack
    metrics: dict[str, float]  # further metrics, means over the seeds where they are defined
    metrics_std: dict[str, float | None]  # their sample standard deviations
    metrics_n: dict[str, int]  # the number of these seeds
    attack_success: float | None  # mean share of samples classified as the attacker wants; None without target


@dataclass(frozen=True, slots=True)
class Group:
    """Runs of one config that differ in the seed only, one run per seed, with the row that sums them up."""

    row: ResultRow
    results: list[RunData]

    @property
    def is_further(self) -> bool:
        """Whether the runs have another protocol as their main one: their costs are in the row of that one."""
        return any(MAIN_PROTOCOL in result.numbers for result in self.results)


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and sample standard deviation (n - 1); the latter is None for a single value, NaN as the mean is."""
    mean = fmean(values)
    return mean, (None if len(values) < 2 else stdev(values) if isfinite(mean) else nan)


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
    values = [(run.numbers.get("metrics") or {}).get(measure) for run in group.results]
    return [None if value is None else float(value) for value in values]


def mean_text(measure: str, mean: float, std: float | None) -> str:
    """Return mean and sample standard deviation in the unit of the measure, "73.3 ± 10.5"."""
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
        raise ConfigError(f"metric = {short_repr(measure)}: no run has it; {suggest_name(measure, names, 'metric')}")


_NAMES = {"auroc": "AUROC", "macro_f1": "macro F1", "weighted_f1": "weighted F1", "ece": "ECE", "nll": "NLL"}
_NAMES |= {"ppv": "PPV", "npv": "NPV", "mcc": "MCC"}
_NAMES |= {"best_val": "best val", "worst10": "worst 10 % of clients"}


_WORST = 0.1  # share of the clients


def client_accuracies(rows: Sequence[Row], name: str = "accuracy") -> dict[int, float]:
    """Return each client's test accuracy (or measure `name`) in the main protocol at the last tested round."""
    by_round = _by_round(rows, name)
    return by_round[max(by_round)] if by_round else {}


def selected_accuracies(run: RunData, name: str = "accuracy") -> dict[int, float]:
    """Return each client's test accuracy (or `name`) at the selected round; with `mean_last_k` its mean over rounds."""
    by_round = _by_round(run.rows, name)
    chosen = [by_round[round_] for round_ in run.selected_rounds() if round_ in by_round]
    clients = dict.fromkeys(client for accuracies in chosen for client in accuracies)
    return {client: fmean(of[client] for of in chosen if client in of) for client in clients}


def _by_round(rows: Sequence[Row], name: str) -> dict[int, dict[int, float]]:
    """By round, the clients' values of a measure of the test data in the main protocol."""
    key, by_round = ("test", name, main_protocol(rows)), dict[int, dict[int, float]]()
    for row in rows:
        if row["client"] is not None and (row["split"], row["name"], row["protocol"]) == key:
            by_round.setdefault(row["round"], {})[row["client"]] = row["value"]
    return by_round


def worst(accuracies: Sequence[float]) -> float | None:
    """Return the mean accuracy of the worst 10 % of the clients, at least one; None without clients."""
    lowest = sorted(accuracies)[: ceil(_WORST * len(accuracies))]
    return fmean(lowest) if lowest else None
