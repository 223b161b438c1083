"""Measures the drift of every round of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from fedloom.engine.observed_round import ObservedRound
from fedloom.methods.contract.method import Method
from fedloom.runs.drift.by_class import head_figures, table_figures
from fedloom.runs.drift.mean_weights import MeanWeights
from fedloom.runs.drift.server_values import server_figures
from fedloom.runs.drift.updates import client_updates, update_figures
from fedloom.runs.storage.drift_log import DriftRound, DriftValue

if TYPE_CHECKING:
    from fedloom.runs.drift.decomposition import Decomposition


class DriftObserver:
    """Measures the drift of rounds. It changes nothing that the run computes.

    Attributes:
        latest: what was found in the last round that was observed.
        seconds: the time that this took.

    Args:
        class_counts: returns the training samples of each class of a client [C]; None where only the client knows them.
        decomposition: splits the drift of a round into its parts; None measures only what the uploads tell.
    """

    def __init__(
        self, class_counts: Callable[[int], Tensor] | None, decomposition: Decomposition | None = None
    ) -> None:
        self._class_counts, self._decomposition = class_counts, decomposition
        self._weights = MeanWeights()
        self.latest: DriftRound | None = None
        self.seconds = 0.0

    def noting(self, method: Method) -> Method:
        return self._weights.noting(method)

    def observe(self, observed: ObservedRound) -> None:
        started, values, notes = time.perf_counter(), list[DriftValue](), list[str]()

        def add(figures: list[DriftValue] | str) -> None:
            if isinstance(figures, str):
                notes.append(figures)
            else:
                values.extend(figures)

        updates = client_updates(observed)
        if isinstance(updates, str):
            notes.append(updates)
        else:
            samples = dict(observed.samples)
            add(update_figures(updates, observed.ctx.task, samples))
            add(self._weights.figures(updates.entry, updates.clients, samples))
            add(head_figures(updates, observed, self._class_counts))
        add(table_figures(observed))
        add(server_figures(observed))
        if self._decomposition is not None and self._decomposition.is_due(observed.ctx.round):
            add(self._decomposition.figures(observed))
        finite = [v if v.value is None or math.isfinite(v.value) else v._replace(value=None) for v in values]
        self.latest = DriftRound(observed.ctx.round, finite, notes)
        self.seconds = time.perf_counter() - started
