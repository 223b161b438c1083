"""The log of a federation, and the status and other small JSON files that its server keeps in the run's folder.
The server replaces the status at every change, and every few seconds while it waits, so it tells when a server has
died. The log goes to the logger `fedloom.flower`: sentences for people, with the attribute `facts` for programs.
Flower's apps print both to stdout, as lines of JSON."""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedloom.core.errors import ConfigError, RunFolderError, printable
from fedloom.core.files import json_text, parse_json, read_file, write_atomic
from fedloom.core.text import bytes_text, percent, seconds_text
from fedloom.flower.findings import require_free
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.log import Row, main_protocol, of_protocol, total_over_rounds
from fedloom.runs.storage.run_data import RunData

LOGGER = logging.getLogger("fedloom.flower")
LOGGER.addHandler(logging.NullHandler())  # silent unless a handler is added
_LOGGED_MEASURES = ("bytes_up", "bytes_down", "accuracy", "seconds_total")  # in the line of a round
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


def client_list(clients: Sequence[int]) -> str:
    """Return client ids as text, at most twenty of them."""
    remainder = f" and {len(clients) - MAX_NAMED} more" if len(clients) > MAX_NAMED else ""
    return ", ".join(map(str, clients[:MAX_NAMED])) + remainder


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time (seconds since 1970), level, facts, and the text if any."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        facts |= getattr(record, "facts", {})
        if text := record.getMessage():
            facts["text"] = text
        return json_text(facts)


def log(event: str, facts: Mapping[str, Any], text: str = "", level: int = logging.INFO) -> None:
    """Write one line to the log. facts: further keys; those that are None are left out. text: for people."""
    present = {name: value for name, value in facts.items() if value is not None}
    LOGGER.log(level, "%s", text, extra={"facts": {"event": event, **present}})


def to_stdout() -> None:
    """Print the log to stdout as lines of JSON; calling it again changes nothing."""
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in LOGGER.handlers):
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(JsonFormatter())
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False


class LogCallback(Callback):
    """Logs the events of a run, whose name among nodes is `run`."""

    def __init__(self, run: str) -> None:
        self._run = run

    def on_start(self, config: RunConfig, first_round: int) -> None:
        log("start", {"run": self._run, "round": first_round - 1, "rounds": config.rounds})

    def on_note(self, config: RunConfig, note: str) -> None:
        if isinstance(note, LogRecord):
            log(note.event, {"run": self._run, "round": note.round, "client": note.client}, note, logging.WARNING)
        else:
            log("note", {"run": self._run}, note)

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        of_main = of_protocol(rows, main_protocol(rows))
        summary_rows = (row for row in of_main if row["client"] is None and row["split"] in ("system", "test"))
        measures = {row["name"]: row["value"] for row in summary_rows if row["name"] in _LOGGED_MEASURES}
        log("round", {"run": self._run, "round": round_, "rounds": config.rounds, **measures})

    def on_end(self, config: RunConfig, result: RunData) -> None:
        numbers = result.numbers
        log("end", {"run": self._run, "round": numbers["rounds"], "accuracy": numbers["accuracy"]})


def log_sentence(line: str, zone: tzinfo | None = None) -> str:
    """Return a `line` of `JsonFormatter` as a sentence with a time in `zone` (None: local); other lines as they are.

    >>> from datetime import UTC
    >>> log_sentence('{"time": 0, "event": "round", "round": 2, "rounds": 9, "accuracy": 0.5, "bytes_up": 2000}', UTC)
    '00:00:00 round 2 of 9: accuracy 50.0 %, 2.00 kB up'
    """
    try:
        facts = parse_json(line)
        clock = f"{datetime.fromtimestamp(facts['time'], zone):%H:%M:%S}"
        return printable(f"{clock} {_sentence(facts)}")
    except (ValueError, KeyError, TypeError, OverflowError, OSError):  # no line of the log
        return printable(line)


def as_json_line(line: str) -> str:
    """Return a line of the log as it is, and any other line as a note in JSON."""
    return line if line.startswith("{") else json_text({"event": "note", "text": line})


def _sentence(facts: Mapping[str, Any]) -> str:
    event, text = str(facts["event"]), str(facts.get("text", ""))
    if event == "round":
        return f"round {facts['round']} of {facts['rounds']}{_measures(facts)}"
    if event == "start":
        done = f"continues after round {facts['round']} of" if facts["round"] else "begins, with"
        return f"run {facts['run']} {done} {facts['rounds']} rounds"
    if event == "end":
        return f"run {facts['run']} has finished round {facts['round']}, the last one{_measures(facts)}"
    subjects = ", ".join(f"{name} {facts[name]}" for name in ("round", "client", "file") if facts.get(name) is not None)
    warning = "note: " if event == "note" else f"{event}: "
    return (f"{subjects}: " if subjects else "") + (f"{warning}{text}" if text else event)


def _measures(facts: Mapping[str, Any]) -> str:
    measures = []
    if facts.get("accuracy") is not None:
        measures.append(f"accuracy {percent(facts['accuracy'])} %")
    for key, direction in (("bytes_up", "up"), ("bytes_down", "down")):
        if facts.get(key) is not None:
            measures.append(f"{bytes_text(facts[key])} {direction}")
    if facts.get("seconds_total") is not None:
        measures.append(f"in {seconds_text(facts['seconds_total'])}")
    return f": {', '.join(measures)}" if measures else ""


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
        """Write the file, which only its owner can read. Raises `RunFolderError` if that fails, as on a full disk."""
        try:
            write_atomic(out / self.FILE, self.model_dump_json(indent=1) + "\n", private=True)
        except OSError as error:
            why = f"cannot be written ({error.strerror}); free space, or mend the disk, and repeat the command"
            raise RunFolderError(f"{out / self.FILE}: {why}") from error


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
            with contextlib.suppress(RunFolderError):  # `error`, which ends the run, matters more, and may be the same
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
