"""The log of a federation, which goes to the logger `fedloom.flower`: sentences for people, with the attribute `facts`
for programs. Flower's apps print both to stdout, as lines of JSON."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, tzinfo
from typing import Any

from fedloom.core.errors import printable
from fedloom.core.files import json_text, parse_json
from fedloom.core.text import bytes_text, percent, seconds_text
from fedloom.flower.status import LOGGER, LogRecord, log
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.log import Row, main_protocol, of_protocol
from fedloom.runs.storage.run_data import RunData

_MEASURES: dict[str, Callable[[float], str]] = {  # in the line of a round, in words
    "accuracy": lambda share: f"accuracy {percent(share)} %",
    "bytes_up": lambda size: f"{bytes_text(size)} up",
    "bytes_down": lambda size: f"{bytes_text(size)} down",
    "seconds_total": lambda seconds: f"in {seconds_text(seconds)}",
}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time (seconds since 1970), level, facts, and the text if any."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        facts |= getattr(record, "facts", {})
        if text := record.getMessage():
            facts["text"] = text
        return json_text(facts)


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
        measures = {row["name"]: row["value"] for row in summary_rows if row["name"] in _MEASURES}
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
    texts = [text(facts[name]) for name, text in _MEASURES.items() if facts.get(name) is not None]
    return f": {', '.join(texts)}" if texts else ""
