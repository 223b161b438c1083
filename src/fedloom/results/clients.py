"""Accuracies of single clients, and the mean of the worst ones. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import fmean

from fedloom.storage.curves import main_protocol
from fedloom.storage.log import Row
from fedloom.storage.run_data import RunData

_WORST = 0.1  # share of the clients


def client_accuracies(rows: Sequence[Row], name: str = "accuracy") -> dict[int, float]:
    """Return each client's test accuracy in the main protocol at the last round that tested; empty if it tests none.

    Args:
        rows: measures of a run.
        name: the measure, also of another predictor, e.g. "accuracy/online".
    """
    key = ("test", name, main_protocol(rows))
    client_rows = [r for r in rows if r["client"] is not None and (r["split"], r["name"], r["protocol"]) == key]
    last = max((r["round"] for r in client_rows), default=0)
    return {r["client"]: r["value"] for r in client_rows if r["round"] == last and r["client"] is not None}


def worst(accuracies: Sequence[float]) -> float | None:
    """Return the mean accuracy of the worst 10 % of the clients, at least one; None without clients."""
    lowest = sorted(accuracies)[: ceil(_WORST * len(accuracies))]
    return fmean(lowest) if lowest else None


def worst_of_group(results: Sequence[RunData]) -> float | None:
    """Return the mean of `worst` over the runs; None if a run tested no single clients."""
    worst_accuracies = [worst(list(client_accuracies(result.rows).values())) for result in results]
    measured = [value for value in worst_accuracies if value is not None]
    return fmean(measured) if measured and len(measured) == len(worst_accuracies) else None
