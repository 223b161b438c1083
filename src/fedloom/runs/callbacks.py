"""Callbacks watch a run. They may add measures to its log and end it early; they cannot change a number."""

import contextlib
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, TypeAlias

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.engine import Federation
from fedloom.evaluation import METRICS
from fedloom.runs.config.keys import built
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.config.sections import EarlyStoppingConfig
from fedloom.runs.storage.log import CALLBACK_SPLIT, LARGEST, Row, curve, new_row
from fedloom.runs.storage.run_data import RunData

Weights: TypeAlias = Callable[..., Tree]


class Callback:
    """Hooks that do nothing: write those that you need. Called in the process that runs.
    An exception raised here ends the run. `rows` are measures, one a row (`fedloom.runs.storage.run_folder.Row`)."""

    def on_resume(self, config: RunConfig, rows: Sequence[Row]) -> str | None:
        """Before `on_start` of a resumed run: the rows of its earlier rounds. Return a reason to end the run here."""

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


def callback_list(callbacks: Any) -> list[Callback]:
    """Return callbacks, or one alone, as a list. Raises `ConfigError` for what is no callback."""
    entries = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
    for entry in entries:
        if isinstance(entry, type) or not callable(getattr(entry, "on_round", None)):
            need = f"write {entry.__name__}()" if isinstance(entry, type) else "need objects of fl.Callback"
            raise ConfigError(f"callbacks: {_shown(entry)} is no callback; {need}")
    return entries


def copy_weights(federation: Federation, client: int | None = None) -> Tree:
    """A copy on the CPU of the server's weights, or of the personal ones of `client`, between two rounds.
    Raises `ConfigError` for a client that does not exist, and where the method has no such model."""
    clients = federation.scenario.clients
    if client is None:
        kind, state = "global", None
    elif 0 <= client < clients:
        kind, state = "personal", federation.state_of(federation.client_context(client, federation.round))
    else:
        raise ConfigError(f"weights of client {client}: clients are 0 to {clients - 1}")
    offered = federation.predictors(state, -1 if client is None else client)
    if kind not in offered:
        advice = "name a client" if client is None else "leave the client out"
        raise ConfigError(f"weights: {federation.method.name()} has no {kind} model; {advice}")
    # copy=True: weights that are on the CPU already would otherwise be those that the next round changes.
    return {name: value.detach().to("cpu", copy=True) for name, value in offered[kind].tree.items()}


_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
# Names of the loop that a first round may lack.
_LOOP_NAMES = re.compile(r"clients|samples_adapted|seconds_checkpoint|(degenerate|samples_(held|closing|opening))/.*")


class CallbackMeasures:
    """Collects the measures of one run's callbacks, and remembers which callback uses which name."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self._owners: dict[str, Callback] = {}

    def rows(self, config: RunConfig, federation: Federation, rows: Sequence[Row]) -> list[Row]:
        """Call every callback's `on_measure` with a copy of the `rows` of a round of `federation`; return its numbers
        as rows. Raises `ConfigError` for a name that is taken or malformed, and for a value that is not a number."""
        round_, weights = federation.round, functools.partial(copy_weights, federation)
        loop_names, measured = {row["name"] for row in rows}, list[Row]()
        for callback in self._callbacks:
            # Copying all rows costs time, so skip callbacks, duck-typed ones included, that do not override on_measure.
            if getattr(type(callback), "on_measure", Callback.on_measure) is Callback.on_measure:
                continue
            measures = callback.on_measure(config, round_, [row.copy() for row in rows], weights)
            if measures is None:
                continue
            if not isinstance(measures, Mapping):
                raise _error(callback, f"on_measure returned {_shown(measures)}; return a dict of numbers")
            for name, value in measures.items():
                self._claim(name, callback, federation)
                if name in loop_names:
                    raise _taken(callback, name, "the run")
                measured.append(new_row(round_, name, _number(callback, name, value), CALLBACK_SPLIT))
        return measured

    def _claim(self, name: Any, callback: Callback, federation: Federation) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise _error(callback, f"measure {_shown(name)} is no name; use letters, digits and _ . / -")
        if self._owners.get(name) is callback:
            return
        if name in self._owners:
            raise _taken(callback, name, f"callback {type(self._owners[name]).__name__}")
        # "accuracy_pooled", "accuracy_honest" and "accuracy/global" are rows of the metric accuracy as well.
        metric = name.partition("/")[0].removesuffix("_pooled").removesuffix("_honest")
        if _LOOP_NAMES.fullmatch(name) or metric in METRICS:
            raise _taken(callback, name, "the run")
        if name in federation.method.figures(federation.server, federation.server_context()):
            raise _taken(callback, name, f"method {federation.method.name()}")
        self._owners[name] = callback


def check_reason(callback: Callback, reason: object) -> None:
    """Raise `ConfigError` if a reason to stop is a dict: measures are returned from `on_measure`."""
    if isinstance(reason, Mapping):
        why = "which is no reason to stop; return measures from on_measure"
        raise _error(callback, f"on_round returned a dict, {why}")


def _number(callback: Callback, name: str, value: Any) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # of an integer with more than 308 digits
            number = float(value)
            if math.isnan(number) or abs(number) < LARGEST:
                return number
    advice = "return a finite number, or NaN where there is none (float(...) of a tensor)"
    raise _error(callback, f"measure {name} is {_shown(value)}; {advice}")


def _taken(callback: Callback, name: str, owner: str) -> ConfigError:
    return _error(callback, f"measure {name} is already a measure of {owner}; rename it")


def _shown(value: object) -> str:
    return " ".join(repr(value)[:100].split())


def _error(callback: Callback, problem: str) -> ConfigError:
    return ConfigError(f"callback {type(callback).__name__}: {problem}")


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
