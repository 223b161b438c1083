"""Accuracies of single clients, and the mean of the worst ones. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from statistics import fmean

from fedloom.runs.storage.log import Row, main_protocol
from fedloom.runs.storage.run_data import RunData

_WORST = 0.1  # share of the clients


def client_accuracies(rows: Sequence[Row], name: str = "accuracy") -> dict[int, float]:
    """Return each client's test accuracy in the main protocol at the last round that tested; empty if it tests none.

    Args:
        rows: measures of a run.
        name: the measure, also of another predictor, e.g. "accuracy/online".
    """
    by_round = _by_round(rows, name)
    return by_round[max(by_round)] if by_round else {}


def selected_accuracies(run: RunData, name: str = "accuracy") -> dict[int, float]:
    """Return each client's test accuracy at the selected round, as the accuracy of the run is; with `mean_last_k` its
    mean over the rounds. Empty if the run tests no single clients.

    Args:
        run: a finished run.
        name: the measure, also of another predictor, e.g. "accuracy/online".
    """
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


def worst_of_group(results: Sequence[RunData]) -> float | None:
    """Return the mean of `worst` over the runs; None if a run tested no single clients."""
    worst_accuracies = [worst(list(selected_accuracies(result).values())) for result in results]
    measured = [value for value in worst_accuracies if value is not None]
    return fmean(measured) if measured and len(measured) == len(worst_accuracies) else None
