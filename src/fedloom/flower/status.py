"""How a federation is: a small file in the run's folder, which its server writes and anybody may read.

It is written whole at every change, and every few seconds while the server waits. So no connection is needed to read
it, and of a run that is dead it says when it was last alive.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from fedloom.config.run_config import RunConfig
from fedloom.core.errors import RunFolderError
from fedloom.core.files import write_atomic
from fedloom.flower.logs import LogRecord
from fedloom.results.result import Result
from fedloom.runs.callbacks import Callback
from fedloom.storage.curves import total_over_rounds
from fedloom.storage.log import Row

FILE = "flower-status.json"
SILENT = 30.0  # seconds without a word after which a server may be dead
_BEAT = 5.0  # seconds between two words of a server that waits


class _StatusFacts(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class NodeStatus(_StatusFacts):
    """A client and its node. node: Flower's number, as text. round: the last one that the client left something in."""

    client: int
    node: str
    there: bool
    samples: int
    round: int = 0


class Absence(_StatusFacts):
    """A node that does not take part, and why. client: which one it is, if that is known."""

    node: str
    client: int | None = None
    reason: str


class Wait(_StatusFacts):
    """For whom the server waits. since, until: seconds since 1970."""

    what: str
    clients: list[int]
    since: float
    until: float


class Trouble(_StatusFacts):
    """The last thing that went wrong."""

    time: float
    event: str
    text: str
    round: int | None = None
    client: int | None = None


class Status(_StatusFacts):
    """What the file holds. started, written: seconds since 1970. round: the last whole one. bytes_up, bytes_down: of
    payloads, over all whole rounds. absent: nodes that are left out, the first fifty. refused: uploads and tests.
    failures: exceptions of clients."""

    version: Literal[1] = 1
    run: str
    method: str
    state: Literal["running", "finished", "failed"] = "running"
    started: float
    written: float
    round: int = 0
    rounds: int
    nodes: list[NodeStatus] = []
    absent: list[Absence] = []
    wait: Wait | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    refused: int = 0
    failures: int = 0
    last_error: Trouble | None = None


def read_status(run: Path) -> Status:
    """The status of the federation in a run's folder. Raises `RunFolderError` if there is none, or it is damaged."""
    file = run / FILE
    try:
        return Status.model_validate_json(file.read_bytes())
    except OSError as error:
        raise RunFolderError(
            f"{file}: cannot be read ({error.strerror}); name the folder of a run over Flower, on its server"
        ) from None
    except ValidationError:
        raise RunFolderError(f"{file}: damaged, or of another version of fedloom; the run writes it anew") from None


class StatusWriter(Callback):
    """Keeps the status of one run, and writes it to the run's folder. out: that folder; None writes nothing.

    It is silent until `begin`: whoever cannot begin leaves the folder's status as it was.
    """

    def __init__(self, config: RunConfig, out: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._out, self._clock, self._begun = out, clock, False
        now = clock()
        self.status = Status(run="", method=config.method, rounds=config.rounds, started=now, written=now)

    def begin(self, name: str, round_: int) -> None:
        """The server looks for nodes; they know the run by `name`, and `round_` rounds were done before."""
        self._begun, self.status.run, self.status.round = True, name, round_
        self._write()

    def seats(self, seats: Sequence[NodeStatus], absent: Sequence[Absence] = ()) -> None:
        """Who is there now, and which nodes do not take part."""
        rounds = {seat.client: seat.round for seat in self.status.nodes}
        now = [seat.model_copy(update={"round": rounds.get(seat.client, 0)}) for seat in seats]
        if (now, [*absent]) != (self.status.nodes, self.status.absent):
            self.status.nodes, self.status.absent = now, [*absent]
            self._write()

    def waits(self, what: str, clients: Sequence[int], seconds: float) -> None:
        """The server waits, at most for so many seconds more. Said as often as it looks."""
        now, before = self._clock(), self.status.wait
        same = before is not None and before.what == what
        since = before.since if before and same else now
        self.status.wait = Wait(what=what, clients=sorted(clients), since=since, until=now + seconds)
        if not same or now - self.status.written >= _BEAT:
            self._write()

    def waited(self) -> None:
        """The server waits no longer."""
        if self.status.wait is not None:
            self.status.wait = None
            self._write()

    def counts(self, client: int, round_: int) -> None:
        """A client has left something that counts."""
        for seat in self.status.nodes:
            if seat.client == client:
                seat.round = round_

    def failed(self, error: BaseException) -> None:
        """The run has ended without a result."""
        if self._begun:
            self.status.state, self.status.wait = "failed", None
            self._error("ended", str(error) or type(error).__name__, None, None)

    # -- what the run tells --------------------------------------------------------------------------------------
    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> None:
        self._add(rows)

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        self.status.round = round_
        self._add(rows)
        self._write()

    def on_note(self, config: RunConfig, note: str) -> None:
        if isinstance(note, LogRecord) and note.event not in ("waiting", "paused"):
            self.status.refused += note.event == "refused"
            self.status.failures += note.event == "failed"
            self._error(note.event, str(note), note.round, note.client)

    def on_end(self, config: RunConfig, result: Result) -> None:
        self.status.state, self.status.wait = "finished", None
        self._write()

    def _add(self, rows: Sequence[Row]) -> None:
        self.status.bytes_up += int(total_over_rounds(rows, "bytes_up"))
        self.status.bytes_down += int(total_over_rounds(rows, "bytes_down"))

    def _error(self, event: str, text: str, round_: int | None, client: int | None) -> None:
        self.status.last_error = Trouble(time=self._clock(), event=event, text=text, round=round_, client=client)
        self._write()

    def _write(self) -> None:
        self.status.written = self._clock()
        if self._out is not None and self._begun:
            write_atomic(self._out / FILE, self.status.model_dump_json(indent=1) + "\n", private=True)
