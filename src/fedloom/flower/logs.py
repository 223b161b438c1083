"""Structured logs: one JSON object a line, with its run, round and client.

They go to the logger `fedloom.flower` of the standard library. Flower's apps print them to stdout; a program that
embeds a federation may handle them in its own format, from the record's attribute `facts`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedloom.core.errors import printable
from fedloom.core.files import json_text
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.log import Row, main_protocol, of_protocol
from fedloom.runs.storage.run_data import RunData

LOGGER = logging.getLogger("fedloom.flower")
LOGGER.addHandler(logging.NullHandler())  # silent unless a handler is added
_LOGGED_MEASURES = ("bytes_up", "bytes_down", "accuracy", "seconds_total")  # in the line of a round


class LogRecord(str):
    """A sentence for people, with facts for machines. Control characters are escaped.

    event: one word, e.g. "refused". round, client: None where the sentence is about none.
    """

    event: str
    round: int | None
    client: int | None

    def __new__(cls, text: str, event: str, *, round: int | None = None, client: int | None = None) -> LogRecord:
        record = super().__new__(cls, printable(text))
        record.event, record.round, record.client = event, round, client
        return record


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON: time (seconds since 1970), level, facts, and the text if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {"time": round(record.created, 3), "level": record.levelname.lower()}
        facts |= getattr(record, "facts", {})
        if text := record.getMessage():
            facts["text"] = text
        return json_text(facts)


def log(event: str, facts: Mapping[str, Any], text: str = "", level: int = logging.INFO) -> None:
    """Write one line to the log.

    Args:
        event: name of the event, such as "round".
        facts: further keys of the line; those that are None are left out.
        text: a sentence for people.
        level: level of `logging`.
    """
    present = {name: value for name, value in facts.items() if value is not None}
    LOGGER.log(level, "%s", text, extra={"facts": {"event": event, **present}})


def to_stdout() -> None:
    """Print the log to stdout as lines of JSON; further calls in a process change nothing."""
    if not any(isinstance(handler.formatter, JsonFormatter) for handler in LOGGER.handlers):
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(JsonFormatter())
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False


class LogCallback(Callback):
    """Logs the events of a run. name: returns the run's name among nodes."""

    def __init__(self, name: Callable[[], str]) -> None:
        self._name = name

    def on_start(self, config: RunConfig, first_round: int) -> None:
        log("start", {"run": self._name(), "round": first_round - 1, "rounds": config.rounds})

    def on_note(self, config: RunConfig, note: str) -> None:
        if isinstance(note, LogRecord):
            facts = {"run": self._name(), "round": note.round, "client": note.client}
            log(note.event, facts, note, logging.WARNING)
        else:
            log("note", {"run": self._name()}, note)

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        of_main = of_protocol(rows, main_protocol(rows))
        summary_rows = (row for row in of_main if row["client"] is None and row["split"] in ("system", "test"))
        measures = {row["name"]: row["value"] for row in summary_rows if row["name"] in _LOGGED_MEASURES}
        log("round", {"run": self._name(), "round": round_, "rounds": config.rounds, **measures})

    def on_end(self, config: RunConfig, result: RunData) -> None:
        numbers = result.numbers
        log("end", {"run": self._name(), "round": numbers["rounds"], "accuracy": numbers["accuracy"]})
