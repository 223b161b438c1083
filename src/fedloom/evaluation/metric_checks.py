"""Checks of metrics that are not fedloom's own, before any training: their names, and what they return."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_type_hints

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.files import json_text
from fedloom.evaluation.metric import METRICS, Metric, MetricKinds, MetricStates
from fedloom.evaluation.metrics.of_function import own_sources

_TAKEN = {"clients", "episodes", "accuracy_by_sample", "accuracy_interval"}
_TAKEN_BEGINNING, _TAKEN_ENDS = "majority", ("_pooled", "_clients", "_honest")
_OVER = get_args(get_args(get_type_hints(Metric)["over"])[0])


def check_own_metrics(names: Iterable[str], example: MetricStates) -> None:
    """Check the metrics that are not fedloom's own on the states of one sample.

    Args:
        names: metrics of the run, registered.
        example: their states on any sample.

    Raises `ConfigError` for the name of another measure, and for a metric that cannot be merged, computed or stored.
    """
    for name in own_sources(names):
        _refuse_taken_name(name)
        kind = METRICS.get(name)
        if kind.over not in _OVER:
            raise ConfigError(f"metric {name}: over = {short_repr(kind.over)}; need {', '.join(map(repr, _OVER))}")
        state = example.states.get(kind.shared or name)
        if state is not None:
            _check_state(name, state)


def metric_of_one_process(metrics: MetricKinds) -> str | None:
    """Return which metric has states that cannot be sent to another process, and why; None if all can.

    Args:
        metrics: their classes, by name.
    """
    for name, kind in metrics.items():
        try:
            if not hasattr(kind, "function"):  # the states of functions are sums
                pickle.dumps(kind)
        except (pickle.PicklingError, AttributeError, TypeError):
            return f"the class of the metric {name} is not at the top of a module or script"
    return None


def _refuse_taken_name(name: str) -> None:
    shared = {kind.shared for _, kind in METRICS if kind.shared}
    if name in _TAKEN | shared or name.startswith(_TAKEN_BEGINNING) or name.endswith(_TAKEN_ENDS):
        raise ConfigError(f"metric {name}: fedloom has measures of this name; take another one, e.g. own_{name}")


def _check_state(name: str, state: Metric) -> None:
    """Do once what a run does with a state. Raises `ConfigError`."""
    merged = _done(name, "merge", lambda: state.merge(state))
    value = _done(name, "compute", merged.compute)
    if not isinstance(value, int | float):
        raise ConfigError(f"metric {name}: compute gives {type(value).__name__}; need a number, NaN if it has none")
    for hook in ("details", "client_details"):
        details = _done(name, hook, getattr(merged, hook))
        if not isinstance(details, Mapping):
            raise ConfigError(f"metric {name}: {hook} gives {type(details).__name__}; need values by name")
        _done(name, hook, functools.partial(json_text, details))


def _done(name: str, hook: str, action: Callable[[], Any]) -> Any:
    try:
        return action()
    except Exception as error:  # whatever the caller's code raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"metric {name}: {hook} fails ({reason})") from error
