"""Measures the drift of every round, and keeps it in the run folder."""

import math
import time
from collections.abc import Callable

from fedloom.core.errors import ConfigError
from fedloom.engine import Federation, Worker
from fedloom.engine.round_report import ObservedRound
from fedloom.nets.user_model import error_line
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.drift.decomposition import Decomposition
from fedloom.runs.drift.updates import client_updates, update_figures
from fedloom.runs.storage.log import DriftLog, DriftRound, DriftValue, Row, new_row
from fedloom.runs.storage.run_folder import RunFolder


class DriftObserver:
    """Measures the drift of rounds, and changes nothing that the run computes. `latest` and `seconds` are the drift of
    the last observed round and the time that it took."""

    def __init__(self, decomposition: Decomposition | None = None) -> None:
        self._decomposition = decomposition
        self.latest: DriftRound | None = None
        self.seconds = 0.0

    def observe(self, observed: ObservedRound) -> None:
        started, values, notes = time.perf_counter(), list[DriftValue](), list[str]()

        def add(figures: Callable[[], list[DriftValue] | str]) -> None:
            try:
                measured = figures()
            except Exception as error:  # hooks may raise on clients that were not drawn; no run needs figures
                measured = f"drift is not measured: {error_line(error)}"
            if isinstance(measured, str):
                notes.append(measured)
            else:
                values.extend(measured)

        updates = client_updates(observed)
        if isinstance(updates, str):
            notes.append(updates)
        else:
            add(lambda: update_figures(updates, observed.ctx.task, observed.samples))
        if (decomposition := self._decomposition) is not None and decomposition.is_due(observed.ctx.round):
            add(lambda: decomposition.figures(observed))
        # drift.jsonl takes finite numbers and null alone.
        finite = [v if v.value is None or math.isfinite(v.value) else v._replace(value=None) for v in values]
        self.latest = DriftRound(observed.ctx.round, finite, notes)
        self.seconds = time.perf_counter() - started


class RunDrift:
    """Measures the drift of a federation's rounds if the config asks for it, and stores the values in `folder`, if any.

    `elsewhere` says that clients train on nodes, whose data are not here. Raises `ConfigError` for decompositions of
    such a federation.
    """

    def __init__(
        self, config: RunConfig, federation: Federation, worker: Worker, folder: RunFolder | None, elsewhere: bool
    ) -> None:
        self._log = None if folder is None else DriftLog(folder.path)
        self._rounds = list[DriftRound]()
        self._observer: DriftObserver | None = None
        if config.drift is None:
            return
        every, decomposition = config.drift.decompose_every, None
        if every and elsewhere:
            raise ConfigError(
                f"drift.decompose_every = {every}: all clients would train once more here, and their data are on "
                "nodes; leave it out, and drift=true still measures what uploads tell"
            )
        if every:
            decomposition = Decomposition(worker, every)
        self._observer = federation.observer = DriftObserver(decomposition)

    @property
    def rounds(self) -> list[DriftRound] | None:
        """The rounds so far; None if drift is not measured."""
        return None if self._observer is None else self._rounds

    def resume(self, round_: int) -> None:
        """Go on after a round: what was kept of later ones is deleted."""
        if self._observer is not None and self._log is not None:
            self._rounds = self._log.keep_until(round_)

    def store(self, round_: int) -> list[Row]:
        """Keep what was found in a round, and return the row of its cost."""
        if self._observer is None:
            return []
        latest = self._observer.latest
        if latest is None or latest.round != round_:  # no participant had data
            latest = DriftRound(round_, (), ("no participant has data: nothing is measured",))
        self._rounds.append(latest)
        if self._log is not None:
            self._log.append(latest)
        return [new_row(round_, "seconds_drift", self._observer.seconds)]
