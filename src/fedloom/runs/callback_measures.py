"""Measures of callbacks: checked, and made rows of the round's log before the round is saved."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.engine import Federation
from fedloom.evaluation import METRICS
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.storage.log import CALLBACK_SPLIT, LARGEST, Row
from fedloom.runs.weights import copy_weights

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]*")
# Names of the loop that a first round may lack.
_LOOP_NAMES = re.compile(r"clients|samples_adapted|seconds_checkpoint|(degenerate|samples_(held|closing|opening))/.*")


class CallbackMeasures:
    """Collects what the callbacks of one run measure, and knows whose measure each name is."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = callbacks
        self._owners: dict[str, Callback] = {}

    def rows(self, config: RunConfig, federation: Federation, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of the callbacks' measures after a round.

        Args:
            config: config of the run.
            federation: the federation after the round.
            rows: the run's own measures of the round, of which callbacks get copies.

        Raises `ConfigError` for a name that is taken or malformed, and for a value that is not a number.
        """
        round_, weights = federation.round, functools.partial(copy_weights, federation)
        loop_names, measured = {row["name"] for row in rows}, list[Row]()
        for callback in self._callbacks:
            # Without a measure of its own nothing is copied: neither for a Callback nor for an object of its form.
            if getattr(type(callback), "on_measure", Callback.on_measure) is Callback.on_measure:
                continue
            measures = callback.on_measure(config, round_, [row.copy() for row in rows], weights)
            if measures is None:
                continue
            if not isinstance(measures, Mapping):
                raise ConfigError(
                    f"callback {_name(callback)}: on_measure returned {_shown(measures)}; return a dict of numbers"
                )
            for name, value in measures.items():
                self._claim(name, callback, federation)
                if name in loop_names:
                    raise _taken(callback, name, "the run")
                number = _number(callback, name, value)
                measured.append(
                    Row(round=round_, client=None, split=CALLBACK_SPLIT, protocol=None, name=name, value=number)
                )
        return measured

    def _claim(self, name: Any, callback: Callback, federation: Federation) -> None:
        """Make a name the callback's. Raises `ConfigError` if it is malformed or means something else."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"callback {_name(callback)}: measure {_shown(name)} is no name; use letters, digits and _ . / -"
            )
        if self._owners.get(name) is callback:
            return
        if name in self._owners:
            raise _taken(callback, name, f"callback {_name(self._owners[name])}")
        if _LOOP_NAMES.fullmatch(name) or _is_of_a_metric(name):
            raise _taken(callback, name, "the run")
        if name in federation.method.figures(federation.server, federation.server_context()):
            raise _taken(callback, name, f"method {federation.method.name()}")
        self._owners[name] = callback


def check_reason(callback: Callback, reason: object) -> None:
    """Raise `ConfigError` if a reason to stop is a dict: measures are returned from `on_measure`."""
    if isinstance(reason, Mapping):
        raise ConfigError(
            f"callback {_name(callback)}: on_round returned a dict, which is no reason to stop; return measures from "
            "on_measure"
        )


def _number(callback: Callback, name: str, value: Any) -> float:
    """Return the value as a float that the log can hold."""
    if isinstance(value, Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # of an integer with more than 308 digits
            number = float(value)
            if math.isnan(number) or abs(number) < LARGEST:
                return number
    raise ConfigError(
        f"callback {_name(callback)}: measure {name} is {_shown(value)}; return a finite number, or NaN where there is "
        "none (float(...) of a tensor)"
    )


def _taken(callback: Callback, name: str, owner: str) -> ConfigError:
    return ConfigError(f"callback {_name(callback)}: measure {name} is already a measure of {owner}; rename it")


def _shown(value: object) -> str:
    """Return the beginning of a value, on one line."""
    return " ".join(repr(value)[:100].split())


def _name(callback: Callback) -> str:
    return type(callback).__name__


def _is_of_a_metric(name: str) -> bool:
    """Whether a name is that of a metric, or of its value for pooled samples, honest clients or another predictor."""
    start = name.partition("/")[0].removesuffix("_pooled").removesuffix("_honest")
    return start in METRICS
