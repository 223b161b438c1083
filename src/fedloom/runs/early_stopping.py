"""Early stopping on validation data."""

import math
from collections.abc import Sequence
from typing import Literal

from fedloom.core.errors import ConfigError
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.keys import built
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import EarlyStoppingConfig
from fedloom.runs.storage.log import Row, curve


class EarlyStopping(Callback):
    """Ends a run whose validation measure has not improved for some tests in a row.

    Args:
        patience: number of tests.
        min_delta: what counts as an improvement is larger than this (a share for accuracy, nats for loss).
        measure: the validation measure.

    Raises `ConfigError` for values out of range, and after the first test of a run without validation data.
    """

    def __init__(
        self, patience: int = 10, min_delta: float = 0.0, measure: Literal["accuracy", "loss"] = "accuracy"
    ) -> None:
        keys = {"patience": patience, "min_delta": min_delta, "measure": measure}
        self._settings = built(EarlyStoppingConfig, keys, "early_stopping")
        self._rows: list[Row] = []

    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> str | None:
        self._rows = []
        return self._reason_to_stop(rows)

    def on_start(self, config: RunConfig, first_round: int) -> None:
        if first_round == 1:  # this object may have watched another run
            self._rows = []

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> str | None:
        return self._reason_to_stop(rows)

    def _reason_to_stop(self, rows: Sequence[Row]) -> str | None:
        self._rows += [row for row in rows if row["split"] == "val" and row["client"] is None]
        rounds, values = curve(self._rows, self._settings.measure, "val")
        if not rounds:
            # With `evaluation.every`, a round without tests says nothing of the data.
            if any(row["split"] == "test" for row in rows):
                raise ConfigError("early stopping: there is no validation data; set scenario.val above 0")
            return None
        sign = 1 if self._settings.measure == "accuracy" else -1
        best, tests_since_best, best_round = -math.inf, 0, 0
        for round_, value in zip(rounds, values, strict=True):
            tests_since_best += 1
            # NaN is no improvement, so a run that diverged ends as well.
            if sign * value > best + self._settings.min_delta:
                best, tests_since_best, best_round = sign * value, 0, round_
        if tests_since_best < self._settings.patience:
            return None
        direction = "risen above" if sign > 0 else "fallen below"
        reached = f"{sign * best:.4f} of round {best_round}" if best_round else "any finite value"
        return f"validation {self._settings.measure} has not {direction} {reached} in {tests_since_best} tests"
