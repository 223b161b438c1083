"""Costs of training: milliseconds of a local epoch, also relative to FedAvg, FLOPs and bytes. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from fedloom.results.comparability import same_setting
from fedloom.results.group import Group
from fedloom.results.statistics import mean_std
from fedloom.results.verdict import BASELINE
from fedloom.runs.storage.log import total_over_rounds
from fedloom.runs.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the runs of one group: means over seeds.

    Attributes:
        epoch_ms: milliseconds of a client's local epoch, and their sample deviation.
        relative: multiple of FedAvg's time in the same setting; None without such runs.
        flops: of a whole run.
        bytes: of downloads and uploads of a whole run.
    """

    epoch_ms: float | None
    epoch_ms_std: float | None
    relative: float | None
    flops: float
    bytes: float


def epoch_ms(result: RunData) -> float | None:
    """Return milliseconds of a client's local epoch: seconds of training over participants and epochs of all rounds.

    None if no client trained. Times of different machines or engines do not compare.
    """
    epochs = total_over_rounds(result.rows, "participants") * result.config.get("local_epochs", 0)
    return 1000 * total_over_rounds(result.rows, "seconds_train") / epochs if epochs else None


def costs(groups: Sequence[Group]) -> list[Costs]:
    """Return the costs of every group, in their order."""
    return [_costs_of(group, _baseline(group, groups)) for group in groups]


def _costs_of(group: Group, baseline: Group | None) -> Costs:
    ours, base = _times(group), [] if baseline is None else _times(baseline)
    mean, std = mean_std(ours) if ours else (None, None)
    relative = mean / fmean(base) if mean is not None and base and fmean(base) else None
    flops = fmean(float(run.numbers.get("flops") or 0.0) for run in group.results)
    return Costs(mean, std, relative, flops, group.row["bytes_up"] + group.row["bytes_down"])


def _times(group: Group) -> list[float]:
    return [ms for ms in map(epoch_ms, group.results) if ms is not None]


def _baseline(group: Group, groups: Sequence[Group]) -> Group | None:
    """Return the group of FedAvg's runs in the setting of `group`; None if there is none."""
    baselines = (
        candidate
        for candidate in groups
        if candidate.row["method"] == BASELINE and same_setting(group.row, candidate.row)
    )
    return next(baselines, None)
