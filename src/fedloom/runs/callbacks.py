"""Callbacks: everything that watches a run. None can change a number; one may end the run early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from fedloom.config.run_config import RunConfig
from fedloom.core.trees import Tree
from fedloom.results.result import Result
from fedloom.storage.run_folder import Row

Weights: TypeAlias = Callable[..., Tree]


class Callback:
    """Hooks that do nothing: write those that you need. Called in the process that runs.

    An exception raised here ends the run. `rows` are measures, one a row (`fedloom.storage.run_folder.Row`).
    """

    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> str | None:
        """Before `on_start` of a run that goes on: the rows of its earlier rounds. A reason returned ends it here."""

    def on_start(self, config: RunConfig, first_round: int) -> None:
        """Before the first round of this process; `first_round` is above 1 after a resume."""

    def on_weights(self, config: RunConfig, round_: int, weights: Weights) -> None:
        """After each round, before `on_round`: `weights()` copies the server's weights, `weights(3)` those of client 3.

        They are the ones that a test would take, float32 on the CPU. Nothing is copied unless it is called. Raises
        `ConfigError` where the method has no such model.
        """

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> str | None:
        """After each round, with the rows that it added. A reason returned ends the run, as one that has finished."""

    def on_end(self, config: RunConfig, result: Result) -> None:
        """When the run has finished."""

    def on_note(self, config: RunConfig, note: str) -> None:
        """Something a person should know: a degenerate method, a damaged checkpoint."""
