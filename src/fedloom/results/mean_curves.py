"""Curves of several runs of one config: the mean over seeds, and its spread. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from fedloom.results.statistics import mean_std
from fedloom.runs.storage.log import curve
from fedloom.runs.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class MeanCurve:
    """A measure by round: mean over seeds, sample standard deviation (None for one seed), and each seed's values."""

    rounds: list[int]
    mean: list[float]
    std: list[float] | None
    seeds: list[list[float]]


def mean_curve(results: Sequence[RunData], name: str, split: str) -> MeanCurve | None:
    """Average a measure over the rounds in which all runs have a finite value; None if there is no such round.

    Args:
        results: runs that differ in their seed.
        name: name of the measure.
        split: split of the measure, as in `fedloom.runs.storage.log.curve`.
    """
    by_run = [dict(zip(*curve(result.rows, name, split), strict=True)) for result in results]
    common = set.intersection(*(set(values) for values in by_run))
    rounds = sorted(r for r in common if all(isfinite(values[r]) for values in by_run))
    if not rounds:
        return None
    seeds = [[values[r] for r in rounds] for values in by_run]
    columns = [mean_std(column) for column in zip(*seeds, strict=True)]
    stds = [std for _, std in columns if std is not None]
    return MeanCurve(rounds, [mean for mean, _ in columns], stds or None, seeds)
