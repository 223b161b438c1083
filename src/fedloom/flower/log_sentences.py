"""Lines of the structured log as sentences for people, with local time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, tzinfo
from typing import Any

from fedloom.core.errors import printable
from fedloom.core.files import json_text, parse_json
from fedloom.core.text import bytes_text, percent, seconds_text


def log_sentence(line: str, zone: tzinfo | None = None) -> str:
    """Return a line of `JsonFormatter` as a sentence; any other line as it is.

    Args:
        line: the line.
        zone: time zone of the sentence; None is the local one.

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
        done = f"goes on after round {facts['round']} of" if facts["round"] else "begins, with"
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
