"""What all trackers share: the rounds before a crash, and a run's measures, settings and outcome as flat values."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.study.callbacks import Callback
from fedloom.study.config import RunConfig
from fedloom.study.folder import Row
from fedloom.study.results import Result
from fedloom.study.table import flat


class Tracker(Callback):
    """Keeps the rounds that were done before a crash: the last ones may not have been logged."""

    def __init__(self) -> None:
        self._earlier: dict[int, list[Row]] = {}

    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> None:
        self._earlier = {}
        for row in rows:
            self._earlier.setdefault(row["round"], []).append(row)

    def earlier(self, first_round: int) -> dict[int, list[Row]]:
        """The rows of the rounds before the first one of this process, by round."""
        return self._earlier if first_round > 1 else {}


def library(module: str, extra: str) -> Any:
    """A tracker's module. Raises `ConfigError` where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ConfigError(f"the package {extra} is not installed; install fedloom[{extra}]") from None


def measures(rows: Sequence[Row]) -> dict[str, float]:
    """Measures of the whole run by split and name, e.g. "test/accuracy"; those of single clients are left out."""
    return {f"{row['split']}/{row['name']}": row["value"] for row in rows if row["client"] is None}


def settings(config: RunConfig) -> dict[str, str]:
    """The resolved config with dots: "scenario.alpha"."""
    return dict(flat(config.resolved()))


def outcome(result: Result) -> dict[str, float]:
    """The numbers of the summary that are numbers: accuracies, bytes, "seconds.total"."""
    numbers = result.numbers | {f"seconds.{name}": value for name, value in result.numbers["seconds"].items()}
    return {name: value for name, value in numbers.items() if type(value) in (int, float)}
