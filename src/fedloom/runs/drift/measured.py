"""The drift of a run: measured round by round, and kept in its folder."""

from __future__ import annotations

from fedloom.core.errors import ConfigError
from fedloom.engine import Federation, Worker
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.drift.decomposition import Decomposition
from fedloom.runs.drift.observer import DriftObserver
from fedloom.runs.rows import system_row
from fedloom.runs.storage.drift_log import DriftLog, DriftRound
from fedloom.runs.storage.log import Row
from fedloom.runs.storage.run_folder import RunFolder


class RunDrift:
    """Measures the drift of a federation's rounds if the config says so, and keeps what it finds.

    Args:
        config: config of the run.
        federation: gets an observer.
        worker: trains clients for decompositions; it is copied.
        folder: keeps the figures; None keeps them in memory alone.
        elsewhere: whether clients train on nodes, whose data are not here.

    Raises `ConfigError` for decompositions of a federation whose clients train on nodes.
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
        counts = None if elsewhere else (lambda client: federation.client_context(client, 0).class_counts)
        self._observer = federation.observer = DriftObserver(counts, decomposition)

    @property
    def rounds(self) -> list[DriftRound] | None:
        """The rounds so far; None if drift is not measured."""
        return None if self._observer is None else self._rounds

    def resume(self, round_: int) -> None:
        """Go on after a round: what was kept of later ones is deleted."""
        if self._observer is not None and self._log is not None:
            self._rounds = self._log.keep_until(round_)

    def store(self, round_: int) -> list[Row]:
        """Keep what was found in a round, and return the row of its cost.

        Args:
            round_: the round that has ended.
        """
        if self._observer is None:
            return []
        latest = self._observer.latest
        if latest is None or latest.round != round_:  # no participant had data
            latest = DriftRound(round_, (), ("no participant has data: nothing is measured",))
        self._rounds.append(latest)
        if self._log is not None:
            self._log.append(latest)
        return [system_row(round_, "seconds_drift", self._observer.seconds)]
