"""Early stopping on validation data, and checks of an evaluation: is it possible, is the model better than a guess?."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import ValidationError

from fedloom.core.errors import ConfigError
from fedloom.core.text import listed
from fedloom.evaluation import Evaluator, FewShotEvaluator
from fedloom.evaluation.own_metrics import own_sources
from fedloom.evaluation.protocols import Majority, no_model_error
from fedloom.methods import Method
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Predictor
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.keys import explain_validation_error
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import EarlyStoppingConfig
from fedloom.runs.storage.log import Row, accuracies, curve, value_at_selected_round


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
        try:
            self._settings = EarlyStoppingConfig(patience=patience, min_delta=min_delta, measure=measure)
        except ValidationError as error:
            raise explain_validation_error(error, "early_stopping", EarlyStoppingConfig) from None
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
            if any(row["split"] == "test" for row in rows):
                raise ConfigError("early stopping: there is no validation data; set scenario.val above 0")
            return None
        sign = 1 if self._settings.measure == "accuracy" else -1
        best, tests_since_best, best_round = -math.inf, 0, 0
        for round_, value in zip(rounds, values, strict=True):
            tests_since_best += 1
            if sign * value > best + self._settings.min_delta:
                best, tests_since_best, best_round = sign * value, 0, round_
        if tests_since_best < self._settings.patience:
            return None
        direction = "risen above" if sign > 0 else "fallen below"
        reached = f"{sign * best:.4f} of round {best_round}" if best_round else "any finite value"
        return f"validation {self._settings.measure} has not {direction} {reached} in {tests_since_best} tests"


def check_evaluation(
    config: RunConfig, evaluator: Evaluator | FewShotEvaluator, offered: dict[str, Predictor], method: Method
) -> None:
    """Check before training that the method offers the model that the protocol tests, and that rounds can be selected.

    Raises `ConfigError` for a model that is not offered, and for a selection without validation data.
    """
    if isinstance(evaluator, Evaluator) and evaluator.model_kind not in offered:
        raise no_model_error(method.name(), f"{evaluator.model_kind}/{evaluator.data_kind}")
    evaluator.check(offered)
    val_key = config.scenario.val_key
    if config.evaluation.select == "best_val" and "val" not in evaluator.splits:
        raise ConfigError(f"evaluation.select = 'best_val': there is no validation data; set {val_key} above 0")
    if isinstance(evaluator, Evaluator) and config.evaluation.select in ("best_val", "best_test"):
        evaluator.check_selects(
            config.evaluation.select_by, "val" if config.evaluation.select == "best_val" else "test"
        )
    if config.early_stopping is not None and "val" not in evaluator.splits:
        raise ConfigError(f"early_stopping: there is no validation data; set {val_key} above 0, or leave it out")
    if config.early_stopping is not None and method.closing() is not None:
        raise ConfigError(f"early_stopping: {config.method} trains once more after its last round; leave it out")


def not_above_majority(
    config: RunConfig,
    protocol: str,
    rows: Sequence[Row],
    details: Mapping[str, Any],
    baseline: Majority | None,
    classes: Sequence[str],
) -> list[Diagnostic]:
    """Return a diagnostic if the accuracy is not above that of the majority class; it names `classes` that were never
    found.

    `rows` and `details` belong to one protocol, which the text names if the run is tested in several. Without a
    baseline there is no comparison.
    """
    if baseline is None:
        return []
    evaluation = config.evaluation
    accuracy = accuracies(rows, evaluation.last_k, evaluation.criterion())[evaluation.select]
    kind = protocol.partition("/")[0]
    to_beat = baseline.to_beat(kind)
    if accuracy is None or not accuracy <= to_beat + 1e-9:
        return []
    own = kind == "personal" and to_beat == baseline.own
    guess = "the most frequent class of each client" if own else f"the most frequent class, {classes[baseline.label]},"
    recall = details.get("recall", {}).get("by_class", [])
    missed = [name for name, value in zip(classes, recall, strict=False) if value == 0]
    text = (
        f"accuracy {100 * accuracy:.1f} % is not above the {100 * to_beat:.1f} % that always predicting {guess} gives"
    )
    balanced = value_at_selected_round(
        rows, "balanced_accuracy", evaluation.select, evaluation.last_k, evaluation.criterion()
    )
    chance = details.get("balanced_accuracy", {}).get("chance")
    if balanced is not None and chance is not None:
        pooled = protocol == "global/global"  # the chance of a client's test depends on its classes
        text += f" (balanced accuracy {balanced:.3f}{f', chance {chance:.3f}' if pooled else ', mean over clients'})"
    if missed:
        named = ", ".join(missed[:5]) + (", ..." if len(missed) > 5 else "")
        text += f"; no test sample of {len(missed)} of {len(recall)} classes is found ({named})"
    code = "not_above_majority"
    if evaluation.protocols:
        code, text = f"{code}/{protocol}", f"{protocol}: {text}"
    return [Diagnostic(code, text[:2000], accuracy - to_beat)]


def note_metrics_by_name(config: RunConfig, callbacks: Sequence[Callback]) -> None:
    """Tell callbacks which metrics a finished run, which is returned as it is, may have had in another definition."""
    if names := list(own_sources(config.evaluation.metrics)):
        text = (
            f"this run has finished, and is returned as it is: a config knows {listed(names)} by name alone, so if you "
            "have changed the code, train again with --fresh"
        )
        for callback in callbacks:
            callback.on_note(config, text)
