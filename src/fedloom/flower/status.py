"""The status and other small JSON files that a federation's server keeps in the run's folder, and the words of its log.
The server replaces the status at every change, and every few seconds while it waits, so it tells when a server has
died."""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, Field, ValidationError

from fedloom.core.errors import RunFolderError, printable
from fedloom.core.files import read_file, write_atomic
from fedloom.core.text import counted, value_text
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.log import Row, main_protocol, of_protocol, total_over_rounds
from fedloom.runs.storage.run_data import RunData

LOGGER = logging.getLogger("fedloom.flower")
LOGGER.addHandler(logging.NullHandler())  # silent unless a handler is added
MAX_NAMED = 20  # clients in a sentence


class LogRecord(str):
    """A printable sentence for people, with facts for machines. event: one word, e.g. "refused"."""

    event: str
    round: int | None
    client: int | None

    def __new__(cls, text: str, event: str, *, round: int | None = None, client: int | None = None) -> "LogRecord":
        record = super().__new__(cls, printable(text))
        record.event, record.round, record.client = event, round, client
        return record


def client_list(clients: Sequence[int] | Sequence[str]) -> str:
    """Return client ids as text, at most twenty of them."""
    remainder = f" and {len(clients) - MAX_NAMED} more" if len(clients) > MAX_NAMED else ""
    return ", ".join(map(str, clients[:MAX_NAMED])) + remainder


def log(event: str, facts: Mapping[str, Any], text: str = "", level: int = logging.INFO) -> None:
    """Write one line to the log. facts: further keys; those that are None are left out. text: for people."""
    present = {name: value for name, value in facts.items() if value is not None}
    LOGGER.log(level, "%s", text, extra={"facts": {"event": event, **present}})


SILENT = 30.0  # seconds without a write after which a server may be dead
_HEARTBEAT = 5.0  # seconds between two writes of a server that waits
_PAUSE = 1.0  # seconds between two writes because of progress
_STILL = 15.0  # seconds without a change after which progress says so
_LONGEST = 80  # characters of a phase and its detail, which come from a node
_MOST_ROUNDS = 500  # in the status
_MOST_SIMULATED = 100  # clients with their own rows in the status of a simulation


class Strict(BaseModel, extra="forbid", strict=True):
    """Values of exactly the declared keys and types."""


class Stored(Strict):
    """The content of one file of a run's folder. ADVICE: what to do about a damaged one."""

    FILE: ClassVar[str]
    ADVICE: ClassVar[str]

    @classmethod
    def read(cls, out: Path | None) -> Self | None:
        """Read the file in the folder `out`; None if there is none. Raises `RunFolderError` for a damaged file."""
        if out is None:
            return None
        try:
            return cls.model_validate_json(read_file(out / cls.FILE))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            reason = "damaged" if isinstance(error, ValidationError) else f"cannot be read ({error.strerror})"
            raise RunFolderError(f"{out / cls.FILE}: {reason}; {cls.ADVICE}") from None

    def write(self, out: Path) -> None:
        """Write the file, which only its owner can read. Raises `RunFolderError` if that fails, as on a full disk."""
        try:
            write_atomic(out / self.FILE, self.model_dump_json(indent=1) + "\n", private=True)
        except OSError as error:
            why = f"cannot be written ({error.strerror}); free space, or mend the disk, and repeat the command"
            raise RunFolderError(f"{out / self.FILE}: {why}") from error


class Progress(Strict):
    """The work of a client's node on its current request. fraction: of the phase, in [0, 1]. since, changed: when the
    phase began and when it last moved, seconds since 1970. bytes_up, bytes_down: of the request's payloads so far."""

    phase: str
    fraction: float | None
    detail: str
    since: float
    changed: float
    bytes_up: int
    bytes_down: int

    def text(self, now: float) -> str:
        """Return the progress in words: "training 43 %, epoch 2 of 5, for 12 s"."""
        share = "" if self.fraction is None else f" {100 * self.fraction:.0f} %"
        parts = [f"{self.phase}{share}", self.detail, f"for {max(0.0, now - self.since):.0f} s"]
        if now - self.changed >= _STILL:
            parts.append(f"unchanged for {now - self.changed:.0f} s")
        return ", ".join(filter(None, parts))


class NodeStatus(Strict):
    """A client and its node. node: Flower's id, as text; empty if the client has not joined or is simulated. round: the
    last one with a result of the client. value: the client's last test, in the status's metric. bytes_up, bytes_down:
    of the payloads of finished requests. scores: how the client compares with the others; None is not a number."""

    client: int
    node: str
    online: bool
    samples: int
    round: int = 0
    value: float | None = None
    progress: Progress | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    scores: dict[str, float | None] = Field(default_factory=dict)
    outlier: bool = False


class RoundStatus(Strict):
    """A finished round. value: its test, in the status's metric. uploads: how many the round used."""

    round: int
    seconds: float | None = None
    value: float | None = None
    uploads: int = 0


class Absence(Strict):
    """A node that does not take part, and why. client: None if unknown."""

    node: str
    client: int | None = None
    reason: str


class Wait(Strict):
    """The clients that the server waits for. since, until: seconds since 1970; None has no end."""

    purpose: str
    clients: list[int]
    since: float
    until: float | None


class Trouble(Strict):
    """The last error or refusal."""

    time: float
    event: str
    text: str
    round: int | None = None
    client: int | None = None


class Status(Stored):
    """The content of the status file. started, written, phase_since: seconds since 1970. round: the last finished one.
    bytes: over all finished rounds. absent: the first fifty. refused: uploads and tests. failures: exceptions of
    clients. history: finished rounds; of a long run, only every second, fourth ... of the earlier ones. metric: that of
    all values. spread: the last test, over clients, in words."""

    FILE = "flower-status.json"
    ADVICE = "it may be of another version of fedloom; the run writes it again"

    version: Literal[2, 3] = 3
    run: str
    method: str
    state: Literal["running", "finished", "failed"] = "running"
    started: float
    written: float
    phase: str = ""
    phase_since: float = 0.0
    round: int = 0
    rounds: int
    nodes: list[NodeStatus] = Field(default_factory=list)
    absent: list[Absence] = Field(default_factory=list)
    wait: Wait | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    refused: int = 0
    failures: int = 0
    last_error: Trouble | None = None
    metric: str = "accuracy"
    spread: str = ""
    history: list[RoundStatus] = Field(default_factory=list)


class Failure(Stored):
    """The error that ended a run; traceback: of an error in the work itself."""

    FILE = "flower-failed.json"
    ADVICE = "delete it, and repeat the command"

    error: str
    traceback: str
    exit_code: int


def read_status(run: Path) -> Status:
    """Read the status in a run's folder. Raises `RunFolderError` if there is none, or it is damaged."""
    status = Status.read(run)
    if status is None:
        failure = Failure.read(run)
        why = f"the run failed before it began: {failure.error}" if failure else "name the folder of a run over Flower"
        raise RunFolderError(f"{run / Status.FILE} is missing; {why}{'' if failure else ', on its server'}")
    return status


class StatusWriter(Callback):
    """Writes the status of one run to its folder `out`; None writes nothing, and `status` can be read in this process.
    Nothing is written before `begin`, so a server that cannot begin leaves the folder's status as it was."""

    def __init__(self, config: RunConfig, out: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._out, self._clock, self._begun, self._unwritten = out, clock, False, False
        self._clients = dict[int, NodeStatus]()
        now, metric = clock(), config.evaluation.criterion().name
        self.status = Status(
            run="", method=config.method, rounds=config.rounds, started=now, written=now, metric=metric
        )

    def begin(self, name: str, round_: int) -> None:
        """Start writing. name: of the run among nodes. round_: rounds that were finished before."""
        self._begun, self.status.run, self.status.round = True, name, round_
        self._set_phase("starting")
        self._write()

    def set_nodes(self, nodes: Sequence[NodeStatus], absent: Sequence[Absence] = ()) -> None:
        """Set the clients with their nodes, and the nodes that do not take part."""
        current = {client: status for client, status in self._clients.items() if not status.node}
        for node in nodes:
            facts = {"node": node.node, "online": node.online, "samples": node.samples}
            current[node.client] = self._clients.get(node.client, node).model_copy(update=facts)
        if current != self._clients or [*absent] != self.status.absent:
            self._clients, self.status.absent = current, [*absent]
            self._write()

    def set_wait(self, purpose: str, clients: Sequence[int], seconds: float) -> None:
        """Report a wait of at most `seconds` more for replies of `clients`. purpose: a word for these replies."""
        now, before = self._clock(), self.status.wait
        is_same_wait = before is not None and before.purpose == purpose
        since = before.since if before and is_same_wait else now
        self.status.wait = Wait(purpose=purpose, clients=sorted(clients), since=since, until=_finite(now + seconds))
        if not is_same_wait:
            self._set_phase(f"waiting for {purpose}")
        if not is_same_wait or now - self.status.written >= (_PAUSE if self._unwritten else _HEARTBEAT):
            self._write()

    def clear_wait(self) -> None:
        """Report that the wait has ended."""
        if self.status.wait is not None:
            self._set_phase(f"computing after {self.status.wait.purpose}")
            self.status.wait = None
            self._write()

    def record_round(self, client: int, round_: int) -> None:
        """Report that a client's result of a round was accepted."""
        self._client(client).round, self._unwritten = round_, True

    def set_progress(
        self, client: int, phase: str, fraction: float | None, detail: str = "", bytes_up: int = 0, bytes_down: int = 0
    ) -> None:
        """Report the work of a client's node on its current request. phase: a word, such as "training". fraction: of
        the phase, in [0, 1]. detail: "epoch 2 of 5". bytes_up, bytes_down: of the payloads of this request so far."""
        status, now = self._client(client), self._clock()
        # Words and numbers of a node, which may be anything.
        phase, detail = printable(phase)[:_LONGEST], printable(detail)[:_LONGEST]
        fraction = fraction if fraction is not None and 0.0 <= fraction <= 1.0 else None
        before = status.progress if status.progress and status.progress.phase == phase else None
        facts = {"fraction": fraction, "detail": detail, "bytes_up": bytes_up, "bytes_down": bytes_down}
        if before is None or before != before.model_copy(update=facts):
            times = {"since": before.since if before else now, "changed": now}
            status.progress = Progress.model_validate({"phase": phase, **facts, **times})
            self._write_soon()

    def clear_progress(self, client: int) -> None:
        """Report that a client's request has ended; its bytes are added to those of the client."""
        status = self._client(client)
        if (progress := status.progress) is not None:
            status.bytes_up += progress.bytes_up
            status.bytes_down += progress.bytes_down
            status.progress = None
            self._write_soon()

    def set_scores(self, client: int, scores: Mapping[str, float | bool]) -> None:
        """Report how a client compares with the others, by name; `outlier` says that it stands out."""
        status = self._client(client)
        status.outlier = bool(scores.get("outlier", False))
        status.scores = {name: _finite(float(value)) for name, value in scores.items() if name != "outlier"}
        self._write_soon()

    def named(self, clients: Sequence[int]) -> str:
        """Return client ids as text, at most twenty of them, each with its progress if that is known."""
        now, progress = self._clock(), {client: status.progress for client, status in self._clients.items()}
        texts = (f"{client} ({of.text(now)})" if (of := progress.get(client)) else f"{client}" for client in clients)
        return client_list([*texts])

    def set_failed(self, error: BaseException) -> None:
        """Report that the run has ended without a result."""
        if self._begun:
            self._end("failed")
            with contextlib.suppress(RunFolderError):  # `error`, which ends the run, matters more, and may be the same
                self._error("ended", str(error) or type(error).__name__, None, None)

    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> None:
        self._add(rows)

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self.status.round = first_round - 1
        self._set_phase(f"round {first_round}")

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        self.status.round = round_
        self._set_phase(f"round {min(round_ + 1, config.rounds)}")
        self._add(rows)
        self._write()

    def on_note(self, config: RunConfig, note: str) -> None:
        if isinstance(note, LogRecord) and note.event not in ("waiting", "paused"):
            self.status.refused += note.event == "refused"
            self.status.failures += note.event == "failed"
            self._error(note.event, str(note), note.round, note.client)

    def on_end(self, config: RunConfig, result: RunData) -> None:
        self._end("finished")
        self._write()

    def _end(self, state: Literal["finished", "failed"]) -> None:
        self.status.state, self.status.wait = state, None
        self._set_phase("")
        for status in self._clients.values():
            status.progress = None

    def _client(self, client: int) -> NodeStatus:
        return self._clients.setdefault(client, NodeStatus(client=client, node="", online=False, samples=0))

    def _set_phase(self, phase: str) -> None:
        self.status.phase, self.status.phase_since = phase, self._clock()

    def _add(self, rows: Sequence[Row]) -> None:
        self.status.bytes_up += int(total_over_rounds(rows, "bytes_up"))
        self.status.bytes_down += int(total_over_rounds(rows, "bytes_down"))
        measures, values = dict[int, dict[tuple[str, str], float]](), dict[int, float]()
        test = "test", self.status.metric
        for row in of_protocol(rows, main_protocol(rows)):
            key = row["split"], row["name"]
            if row["client"] is None:
                measures.setdefault(row["round"], {})[key] = row["value"]
            elif key == test and math.isfinite(row["value"]):
                values[row["client"]] = row["value"]
        history = self.status.history
        for round_, of in measures.items():
            uploads, seconds = int(of.get(("system", "participants"), 0)), of.get(("system", "seconds_total"))
            history.append(RoundStatus(round=round_, seconds=seconds, value=_finite(of.get(test)), uploads=uploads))
            if len(history) > _MOST_ROUNDS:
                del history[1 : -_MOST_ROUNDS // 2 : 2]
        for client, value in values.items():
            if client in self._clients or len(values) <= _MOST_SIMULATED:
                self._client(client).value = value
        if values:
            low, middle, high = (value_text(test[1], pick(values.values()), 1) for pick in (min, median, max))
            subject = f"{test[1]} of {counted(len(values), 'client')}"
            self.status.spread = f"{subject}: lowest {low}, median {middle}, highest {high}"

    def _error(self, event: str, text: str, round_: int | None, client: int | None) -> None:
        text = printable(text)  # the name of a file may be no valid text
        self.status.last_error = Trouble(time=self._clock(), event=event, text=text, round=round_, client=client)
        self._write()

    def _write_soon(self) -> None:
        """Write now, unless the last write was less than a second ago; then the next call or wait does."""
        self._unwritten = True
        if self._clock() - self.status.written >= _PAUSE:
            self._write()

    def _write(self) -> None:
        self.status.written, self._unwritten = self._clock(), False
        self.status.nodes = [self._clients[client] for client in sorted(self._clients)]
        if self._out is not None and self._begun:
            self.status.write(self._out)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
