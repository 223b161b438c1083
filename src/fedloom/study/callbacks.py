"""Callbacks: everything that watches a run. Three hooks, none of which can change a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fedloom.study.config import RunConfig
from fedloom.study.folder import Row
from fedloom.study.results import Result


class Callback(Protocol):
    """Called in the process that runs. An exception raised here ends the run."""

    def on_start(self, config: RunConfig, first_round: int) -> None:
        """Before the first round of this process; `first_round` is above 1 after a resume."""

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        """After each round, with the rows that it added."""

    def on_end(self, config: RunConfig, result: Result) -> None:
        """When the run has finished."""

    def on_note(self, config: RunConfig, note: str) -> None:
        """Something a person should know: a degenerate method, a damaged checkpoint."""
