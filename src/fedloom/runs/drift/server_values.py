"""Figures of the server's state after a round: the variance of its class tables, and numbers such as FedSKC's rho."""

from __future__ import annotations

import torch

from fedloom.core.tables import ClassTable
from fedloom.engine.observed_round import ObservedRound
from fedloom.runs.storage.drift_log import DriftValue


def server_figures(observed: ObservedRound) -> list[DriftValue]:
    """Return the variance of each class table of the server's next state, and each number in it.

    The variance is S of FedSKC's Eq. 5: of each held class the variance over the entries of its row (divided by their
    number), summed over these classes. In float64.
    """
    values = list[DriftValue]()
    for name, value in observed.after.items():
        if isinstance(value, ClassTable):
            rows = value.values.double().flatten(value.held.dim()).var(-1, correction=0)
            variance = float(torch.where(value.held, rows, 0.0).sum())
            values.append(DriftValue("table_variance", variance, entry=name))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            values.append(DriftValue("server_number", float(value), entry=name))
    return values
