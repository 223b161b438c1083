"""Costs of training: milliseconds, FLOPs and bytes of a run, and of reaching an accuracy. Needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from fedloom.core.errors import ConfigError
from fedloom.core.text import BASELINE
from fedloom.results.comparability import same_setting
from fedloom.results.group import Group, mean_std
from fedloom.runs.storage.log import curve, total_over_rounds
from fedloom.runs.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class Reached:
    """The first tested round whose test accuracy is at least the target, and the cost of all rounds up to it.

    Attributes:
        bytes: downloads and uploads of all clients.
        flops: the run's, in proportion to the samples trained until then.
    """

    round: int
    bytes: int
    flops: float


def reached(result: RunData, target: float) -> Reached | None:
    """Return when `result` first reaches `target`, an accuracy in [0, 1]; None if it never does.
    As in the papers, the first crossing counts even if later rounds fall below it. If tests are rare
    (`evaluation.every`), the round is that of the first test that shows it. Raises `ConfigError` for a wrong target."""
    if not (isfinite(target) and 0 < target <= 1):
        raise ConfigError(f"target = {target}: need an accuracy above 0 and up to 1, e.g. 0.8")
    tested = zip(*curve(result.rows, "accuracy", "test"), strict=True)
    first = next((round_ for round_, accuracy in tested if accuracy >= target), None)
    if first is None:
        return None
    up, down, samples = (
        sum(row["value"] for row in result.rows if row["name"] == name and row["round"] <= first)
        for name in ("bytes_up", "bytes_down", "samples")
    )
    # Only the FLOPs of the whole run are recorded; they grow with the trained samples.
    share = samples / result.numbers["samples"] if result.numbers.get("samples") else 1.0
    return Reached(first, int(up + down), float(result.numbers.get("flops") or 0.0) * min(1.0, share))


@dataclass(frozen=True, slots=True)
class ReachedMean:
    """Means of `Reached` over the `n` seeds of `of` that reached the target."""

    n: int
    of: int
    round: float | None
    bytes: float | None
    flops: float | None


def reached_mean(results: Sequence[RunData], target: float) -> ReachedMean:
    """Return the means over the runs of one group. Runs that never reach the target count in `of` alone."""
    reached_runs = [run for run in (reached(result, target) for result in results) if run is not None]
    if not reached_runs:
        return ReachedMean(0, len(results), None, None, None)
    means = (fmean(getattr(run, name) for run in reached_runs) for name in Reached.__slots__)
    return ReachedMean(len(reached_runs), len(results), *means)


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
    None if no client trained. Times of different machines or engines do not compare."""
    epochs = total_over_rounds(result.rows, "participants") * result.config.get("local_epochs", 0)
    return 1000 * total_over_rounds(result.rows, "seconds_train") / epochs if epochs else None


def costs(groups: Sequence[Group]) -> list[Costs]:
    """Return the costs of every group, in their order."""
    times = [[ms for ms in map(epoch_ms, group.results) if ms is not None] for group in groups]
    baselines = [(group.row, of_group) for group, of_group in zip(groups, times, strict=True)]
    baselines = [(row, of_group) for row, of_group in baselines if row["method"] == BASELINE]
    by_group = []
    for group, ours in zip(groups, times, strict=True):
        base: list[float] = next((of_group for row, of_group in baselines if same_setting(group.row, row)), [])
        mean, std = mean_std(ours) if ours else (None, None)
        relative = mean / fmean(base) if mean is not None and base and fmean(base) else None
        flops = fmean(float(run.numbers.get("flops") or 0.0) for run in group.results)
        by_group.append(Costs(mean, std, relative, flops, group.row["bytes_up"] + group.row["bytes_down"]))
    return by_group
