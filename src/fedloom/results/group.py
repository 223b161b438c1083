"""Runs that differ in the seed only, and the row of numbers that sums them up. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from fedloom.runs.storage.run_data import RunData

MAIN_PROTOCOL = "main_protocol"  # in the numbers of a run's views in further protocols


class ResultRow(TypedDict):
    """One group of runs. Accuracies are shares in [0, 1]; bytes and seconds are means per run."""

    label: str  # the row's name in its study; else the method, with the settings that distinguish it from other rows
    cell: tuple[str, str] | None  # its setting and row in its study; None for runs of no study, or of several
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
    diverged: list[int]  # seeds of runs whose loss was not finite, so that their accuracy means nothing
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
