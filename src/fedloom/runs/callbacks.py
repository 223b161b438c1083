"""Callbacks watch a run. They may measure something more and end the run early; they cannot change a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from fedloom.core.trees import Tree
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import Row

Weights: TypeAlias = Callable[..., Tree]


class Callback:
    """Hooks that do nothing: write those that you need. Called in the process that runs.

    An exception raised here ends the run. `rows` are measures, one a row (`fedloom.runs.storage.run_folder.Row`).
    """

    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> str | None:
        """Before `on_start` of a run that goes on: the rows of its earlier rounds. A reason returned ends it here."""

    def on_start(self, config: RunConfig, first_round: int) -> None:
        """Before the first round of this process; `first_round` is above 1 after a resume."""

    def on_measure(
        self, config: RunConfig, round_: int, rows: Sequence[Row], weights: Weights
    ) -> Mapping[str, float] | None:
        """Return measures by name, to be logged with those of the round; called first after each round.

        A measure becomes a row of split "callback": `result.curve("head_norm", "callback")`, and
        "callback/head_norm" in a tracker. The rows are stored before the round's checkpoint, so a resumed run has each
        of them once.

        Args:
            config: config of the run.
            round_: the round, which counts from 1.
            rows: the run's own measures of this round; changes to them have no effect.
            weights: as in `on_weights`.

        Values are finite numbers, or NaN. `ConfigError` ends the run where one is not, and where a name is that of a
        measure of the run, of its method or of another callback.
        """

    def on_weights(self, config: RunConfig, round_: int, weights: Weights) -> None:
        """Look at the weights after each round, before `on_round`.

        Args:
            config: config of the run.
            round_: the round, which counts from 1.
            weights: `weights()` copies the server's weights, `weights(3)` those of client 3: the ones that a test would
                take, float32 on the CPU. Nothing is copied unless it is called. Raises `ConfigError` where the method
                has no such model.
        """

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> str | None:
        """Look at the measures after each round. A reason returned ends the run, as one that has finished.

        Args:
            config: config of the run.
            round_: the round, which counts from 1.
            rows: the measures that the round added, those of callbacks too.
        """

    def on_end(self, config: RunConfig, result: RunData) -> None:
        """When the run has finished."""

    def on_note(self, config: RunConfig, note: str) -> None:
        """Something a person should know: a degenerate method, a damaged checkpoint."""
