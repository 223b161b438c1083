"""Small JSON files that a federation's server keeps in the run's folder, above all its status. The server replaces the
status at every change, and every few seconds while it waits, so it tells when a server has died."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import read_file, write_atomic
from fedloom.flower.findings import require_free
from fedloom.flower.logs import LogRecord
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.log import Row, total_over_rounds
from fedloom.runs.storage.run_data import RunData

SILENT = 30.0  # seconds without a write after which a server may be dead
_HEARTBEAT = 5.0  # seconds between two writes of a server that waits


class Strict(BaseModel):
    """Values of exactly the declared keys and types."""

    model_config = ConfigDict(extra="forbid", strict=True)


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
        """Write the file, which only its owner can read."""
        write_atomic(out / self.FILE, self.model_dump_json(indent=1) + "\n", private=True)


class NodeStatus(Strict):
    """A client and its node. node: Flower's id, as text. round: the last one with a result of the client."""

    client: int
    node: str
    online: bool
    samples: int
    round: int = 0


class Absence(Strict):
    """A node that does not take part, and why. client: None if unknown."""

    node: str
    client: int | None = None
    reason: str


class Wait(Strict):
    """The clients that the server waits for. since, until: seconds since 1970."""

    purpose: str
    clients: list[int]
    since: float
    until: float


class Trouble(Strict):
    """The last error or refusal."""

    time: float
    event: str
    text: str
    round: int | None = None
    client: int | None = None


class Status(Stored):
    """The content of the status file. started, written: seconds since 1970. round: the last finished one. bytes: over
    all finished rounds. absent: the first fifty. refused: uploads and tests. failures: exceptions of clients."""

    FILE = "flower-status.json"
    ADVICE = "it may be of another version of fedloom; the run writes it again"

    version: Literal[2] = 2
    run: str
    method: str
    state: Literal["running", "finished", "failed"] = "running"
    started: float
    written: float
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


def read_status(run: Path) -> Status:
    """Read the status in a run's folder. Raises `RunFolderError` if there is none, or it is damaged."""
    status = Status.read(run)
    if status is None:
        raise RunFolderError(f"{run / Status.FILE} is missing; name the folder of a run over Flower, on its server")
    return status


class StatusWriter(Callback):
    """Writes the status of one run to its folder `out`; None writes nothing.
    Nothing is written before `begin`, so a server that cannot begin leaves the folder's status as it was."""

    def __init__(self, config: RunConfig, out: Path | None, clock: Callable[[], float] = time.time) -> None:
        self._out, self._clock, self._begun = out, clock, False
        now = clock()
        self.status = Status(run="", method=config.method, rounds=config.rounds, started=now, written=now)

    def begin(self, name: str, round_: int) -> None:
        """Start writing. name: of the run among nodes. round_: rounds that were finished before."""
        self._begun, self.status.run, self.status.round = True, name, round_
        self._write()

    def set_nodes(self, nodes: Sequence[NodeStatus], absent: Sequence[Absence] = ()) -> None:
        """Set the clients with their nodes, and the nodes that do not take part."""
        rounds = {node.client: node.round for node in self.status.nodes}
        current = [node.model_copy(update={"round": rounds.get(node.client, 0)}) for node in nodes]
        if (current, [*absent]) != (self.status.nodes, self.status.absent):
            self.status.nodes, self.status.absent = current, [*absent]
            self._write()

    def set_wait(self, purpose: str, clients: Sequence[int], seconds: float) -> None:
        """Report a wait of at most `seconds` more for replies of `clients`. purpose: a word for these replies."""
        now, before = self._clock(), self.status.wait
        is_same_wait = before is not None and before.purpose == purpose
        since = before.since if before and is_same_wait else now
        self.status.wait = Wait(purpose=purpose, clients=sorted(clients), since=since, until=now + seconds)
        if not is_same_wait or now - self.status.written >= _HEARTBEAT:
            self._write()

    def clear_wait(self) -> None:
        """Report that the wait has ended."""
        if self.status.wait is not None:
            self.status.wait = None
            self._write()

    def record_round(self, client: int, round_: int) -> None:
        """Report that a client's result of a round was accepted."""
        # Not written at once: a round of thousands of clients would write the file as often.
        for node in self.status.nodes:
            if node.client == client:
                node.round = round_

    def set_failed(self, error: BaseException) -> None:
        """Report that the run has ended without a result."""
        if self._begun:
            self.status.state, self.status.wait = "failed", None
            self._error("ended", str(error) or type(error).__name__, None, None)

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

    def on_end(self, config: RunConfig, result: RunData) -> None:
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
            self.status.write(self._out)


def serve_metrics(run: Path, port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serve the status of a `run` to Prometheus at `host`:`port`; return a function that ends this."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError:
        raise ConfigError("prometheus-client is not installed; pip install 'fedloom[prometheus]'") from None
    read_status(run)  # a wrong folder is an error now, and not at the first scrape
    require_free(port, host)

    class Collector:
        def collect(self) -> Iterator[Any]:
            return _metrics(run)

    registry: Any = CollectorRegistry()
    registry.register(Collector())
    server, thread = start_http_server(port, host, registry)

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


def _metrics(run: Path) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    status = read_status(run)
    wait = status.wait
    gauges = {
        "round": ("Last whole round", status.round),
        "rounds": ("Rounds of the run", status.rounds),
        "nodes": ("Clients whose nodes are online", sum(node.online for node in status.nodes)),
        "waiting_clients": ("Clients that the server waits for", len(wait.clients) if wait else 0),
        "waiting_since_seconds": ("When the wait began, seconds since 1970; 0: none", wait.since if wait else 0),
        "written_seconds": ("When the status was written, seconds since 1970", status.written),
        "failed": ("1 if the run ended without a result", int(status.state == "failed")),
        "finished": ("1 if the run ended with one", int(status.state == "finished")),
    }
    counters = {
        "upload_bytes": ("Bytes of payloads from clients", status.bytes_up),
        "download_bytes": ("Bytes of payloads to clients", status.bytes_down),
        "refused": ("Uploads and tests that were refused", status.refused),
        "failures": ("Exceptions in clients' work", status.failures),
    }
    for kind, family in ((GaugeMetricFamily, gauges), (CounterMetricFamily, counters)):
        for name, (text, value) in family.items():
            metric = kind(f"fedloom_{name}", text, labels=["run", "method"])
            metric.add_metric([status.run, status.method], value)
            yield metric
