"""The base class of trackers, and a run's measures, settings and summary as flat dicts."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.core.text import flat
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.newcomers import SPLIT
from fedloom.runs.storage.curves import TESTED_SPLITS, main_protocol
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import Row


class Tracker(Callback):
    """A callback that remembers the rounds before a crash, because the last ones may not have been logged."""

    def __init__(self) -> None:
        self._earlier_rows: dict[int, list[Row]] = {}

    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> None:
        self._earlier_rows = {}
        for row in rows:
            self._earlier_rows.setdefault(row["round"], []).append(row)

    def earlier_rows(self, first_round: int) -> dict[int, list[Row]]:
        """Return by round the rows of the rounds before `first_round`, the first one of this process."""
        return self._earlier_rows if first_round > 1 else {}


def import_tracker(module: str, extra: str) -> Any:
    """Import a tracker's library. Raises `ConfigError` with the `extra` to install if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"the package {extra} is not installed; install fedloom[{extra}]") from None


def measures(rows: Sequence[Row]) -> dict[str, float]:
    """Return the measures of the whole run by split and name ("test/accuracy"), without those of single clients.

    Those of newcomers also have the way of serving them ("newcomers/zero-shot/accuracy"), and those of other protocols
    than the main one have their protocol ("test/personal/local/accuracy").
    """
    of_run, main = [row for row in rows if row["client"] is None], main_protocol(rows)
    names = ((row["split"], _protocol_to_name(row, main), row["name"]) for row in of_run)
    return {"/".join(filter(None, parts)): row["value"] for parts, row in zip(names, of_run, strict=True)}


def _protocol_to_name(row: Row, main: str | None) -> str | None:
    """The protocol of a row that another protocol's row could be taken for."""
    ambiguous = row["split"] == SPLIT or (row["split"] in TESTED_SPLITS and row["protocol"] != main)
    return row["protocol"] if ambiguous else None


def settings(config: RunConfig) -> dict[str, str]:
    """Return the resolved config with dotted keys ("scenario.alpha")."""
    return dict(flat(config.resolved()))


def summary_numbers(result: RunData) -> dict[str, float]:
    """Return the numbers of the summary: accuracies, bytes, seconds ("seconds.total")."""
    numbers = result.numbers | {f"seconds.{name}": value for name, value in result.numbers["seconds"].items()}
    return {name: value for name, value in numbers.items() if type(value) in (int, float)}
