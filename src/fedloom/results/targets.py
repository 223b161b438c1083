"""Costs of reaching an accuracy: rounds, bytes, FLOPs. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from fedloom.core.errors import ConfigError
from fedloom.runs.storage.log import curve
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
    (`evaluation.every`), the round is that of the first test that shows it. Raises `ConfigError` for a wrong target.
    """
    if not (isfinite(target) and 0 < target <= 1):
        raise ConfigError(f"target = {target}: need an accuracy above 0 and up to 1, e.g. 0.8")
    tested = zip(*curve(result.rows, "accuracy", "test"), strict=True)
    first = next((round_ for round_, accuracy in tested if accuracy >= target), None)
    if first is None:
        return None
    up, down, samples = (_until(result, name, first) for name in ("bytes_up", "bytes_down", "samples"))
    share = samples / result.numbers["samples"] if result.numbers.get("samples") else 1.0
    return Reached(first, int(up + down), float(result.numbers.get("flops") or 0.0) * min(1.0, share))


@dataclass(frozen=True, slots=True)
class ReachedMean:
    """Means of `Reached` over the seeds that reached the target, how many did, and of how many."""

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
    return ReachedMean(
        len(reached_runs),
        len(results),
        fmean(run.round for run in reached_runs),
        fmean(run.bytes for run in reached_runs),
        fmean(run.flops for run in reached_runs),
    )


def _until(result: RunData, name: str, last: int) -> float:
    return sum(row["value"] for row in result.rows if row["name"] == name and row["round"] <= last)
