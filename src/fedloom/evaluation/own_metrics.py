"""Metrics that are Python functions, one value for each sample, and checks of foreign metrics before training."""

import functools
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError, short_repr
from fedloom.core.files import json_text
from fedloom.core.plugins import loaded_plugins
from fedloom.evaluation.metric import METRICS, Metric, MetricKinds, MetricStates, Predictions
from fedloom.evaluation.metrics.basic import MeanOverSamples

PerSample = Callable[[Predictions], Tensor]


def register_metric(source: object) -> str:
    """Register a function from `Predictions` of B samples to values [B], or a subclass of `Metric`; return its name.

    Raises `ConfigError` for other objects, for a function without a name, and for the name of another metric.

    Example:
        >>> def is_certain(predictions):
        ...     return predictions.probabilities.amax(1) > 0.9
        >>> register_metric(is_certain)
        'is_certain'
    """
    METRICS.names()  # load built-in metrics and plug-ins first, so none is replaced
    if isinstance(source, type) and issubclass(source, Metric):
        name = next((name for name, kind in METRICS if kind is source), source.__name__)
        METRICS.register(name)(source)
        return name
    name = getattr(source, "__name__", "")
    if not callable(source) or not name.isidentifier():
        problem = "need a name, a function with a name (def), or a class of metrics"
        raise ConfigError(f"evaluation.metrics = {short_repr(source)}: {problem}")
    METRICS.register(name)(_metric_of(source, name))
    return name


def own_sources(names: Iterable[str]) -> dict[str, object]:
    """Return the functions and classes behind the registered metrics that are not fedloom's, for other processes."""
    kinds = {name: METRICS.get(name) for name in names}
    return {
        name: getattr(kind, "function", kind)
        for name, kind in kinds.items()
        if not kind.__module__.startswith("fedloom.")
    }


def pickled_sources(names: Iterable[str], setting: str) -> dict[str, bytes]:
    """Pickle `own_sources` for processes that import the caller's script, as `setting` ("jobs") asks. Raises
    `ConfigError` for a metric that they could not import."""
    in_notebook = getattr(sys.modules.get("__main__"), "__file__", None) is None
    pickled = {}
    for name, source in own_sources(names).items():
        try:
            pickled[name] = pickle.dumps(source)
            # Pickle stores the name alone, which another process could not import without a script.
            if in_notebook and source.__module__ == "__main__":
                raise pickle.PicklingError("no file defines it")
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(_not_imported(name, setting, error)) from None
    return pickled


def register_pickled(pickled: Mapping[str, bytes], setting: str) -> None:
    """Register metrics from `pickled_sources` in another process; `ConfigError` for one that cannot be imported."""
    loaded_plugins()  # first, because a metric may be defined in one
    for name, source in pickled.items():
        try:
            register_metric(pickle.loads(source))  # noqa: S301 (bytes of the parent process)
        except (AttributeError, ImportError) as error:
            raise ConfigError(_not_imported(name, setting, error)) from None


def _not_imported(name: str, setting: str, error: Exception) -> str:
    return (
        f"evaluation.metrics = {name}: the processes of {setting} cannot import it ({' '.join(str(error).split())}); "
        f"define it at the top of a module or script, or take {setting}=1"
    )


def _metric_of(function: PerSample, name: str) -> type[Metric]:
    class FunctionMetric(MeanOverSamples):
        multi_label = True

        @classmethod
        def new(cls, predictions: Predictions) -> MeanOverSamples:  # type: ignore[override]
            try:
                values: object = function(predictions)
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise ConfigError(f"evaluation.metrics = {name}: the function fails ({reason})") from error
            return MeanOverSamples(_checked_sum(values, name, predictions), len(predictions.labels))

    FunctionMetric.function = function  # type: ignore[attr-defined]
    FunctionMetric.__doc__ = function.__doc__
    FunctionMetric.__module__ = function.__module__  # by which the registry knows a definition that is run again
    FunctionMetric.__qualname__ = getattr(function, "__qualname__", name)
    return FunctionMetric


def _checked_sum(values: object, name: str, predictions: Predictions) -> float:
    """The sum of the values in float64. Raises `ConfigError` unless there is one for each sample."""
    samples = len(predictions.labels)
    if not isinstance(values, Tensor) or values.shape != (samples,):
        given = f"a tensor of shape {list(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
        raise ConfigError(f"evaluation.metrics = {name}: it gives {given}; need one value for each sample, [{samples}]")
    return float(values.detach().to("cpu", torch.float64).sum())


_TAKEN = {"clients", "episodes", "accuracy_by_sample", "accuracy_interval"}
_TAKEN_BEGINNING, _TAKEN_ENDS = "majority", ("_pooled", "_clients", "_honest")
_OVER = get_args(get_args(get_type_hints(Metric)["over"])[0])


def check_own_metrics(names: Iterable[str], example: MetricStates) -> None:
    """Check metrics that are not fedloom's own on their states of one sample. Raises `ConfigError` for the name of
    another measure, and for a metric that cannot be merged, computed or stored."""
    for name in own_sources(names):
        shared = {kind.shared for _, kind in METRICS if kind.shared}
        if name in _TAKEN | shared or name.startswith(_TAKEN_BEGINNING) or name.endswith(_TAKEN_ENDS):
            raise ConfigError(f"metric {name}: fedloom has measures of this name; take another one, e.g. own_{name}")
        kind = METRICS.get(name)
        if kind.over not in _OVER:
            raise ConfigError(f"metric {name}: over = {short_repr(kind.over)}; need {', '.join(map(repr, _OVER))}")
        state = example.states.get(kind.shared or name)
        if state is not None:
            _check_state(name, state)


def metric_of_one_process(metrics: MetricKinds) -> str | None:
    """Return which of the metrics has states that cannot be sent to another process, and why; None if all can."""
    for name, kind in metrics.items():
        try:
            if not hasattr(kind, "function"):  # the states of functions are sums
                pickle.dumps(kind)
        except (pickle.PicklingError, AttributeError, TypeError):
            return f"the class of the metric {name} is not at the top of a module or script"
    return None


def _check_state(name: str, state: Metric) -> None:
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
