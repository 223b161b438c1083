"""Metrics that are Python functions: one value for each sample, whose mean is the metric."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError, short_repr
from fedloom.evaluation.metric import METRICS, Metric, Predictions

PerSample = Callable[[Predictions], Tensor]


@dataclass(frozen=True, slots=True)
class MeanOverSamples(Metric):
    """The sum of the values of samples, and their number."""

    value_sum: float
    total: int

    @classmethod
    def new(cls, predictions: Predictions) -> MeanOverSamples:
        """The state of one batch; each function has a class of its own, which says how."""
        raise NotImplementedError

    def compute(self) -> float:
        """The mean over samples; NaN without any."""
        return self.value_sum / self.total if self.total else math.nan

    def check(self, total: int) -> None:
        """Raise `ValueError` unless the sum is of `total` samples."""
        if self.total != total:
            raise ValueError(f"a sum over {self.total} samples; there are {total}")


def register_metric(source: object) -> str:
    """Register a function, or a class of metrics, under its name, and return the name.

    Args:
        source: a function from `Predictions` of B samples to their values [B], or a subclass of `Metric`.

    Raises `ConfigError` for other objects, for a function without a name, and for the name of another metric.

    Example:
        >>> def is_sure(predictions):
        ...     return predictions.probabilities.amax(1) > 0.9
        >>> register_metric(is_sure)
        'is_sure'
    """
    METRICS.names()  # built-in metrics and plug-ins first, so that none is replaced
    if isinstance(source, type) and issubclass(source, Metric):
        registered = (name for name, kind in METRICS if kind is source)
        name = next(registered, source.__name__)
        METRICS.register(name)(source)
        return name
    name = getattr(source, "__name__", "")
    if not callable(source) or not name.isidentifier():
        raise ConfigError(
            f"evaluation.metrics = {short_repr(source)}: need a name, a function with a name (def), or a class of "
            "metrics"
        )
    METRICS.register(name)(_metric_of(source, name))
    return name


def _metric_of(function: PerSample, name: str) -> type[Metric]:
    class FunctionMetric(MeanOverSamples):
        __slots__ = ()

        @classmethod
        def new(cls, predictions: Predictions) -> MeanOverSamples:  # type: ignore[override]
            try:
                values: object = function(predictions)
            except Exception as error:
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise ConfigError(f"evaluation.metrics = {name}: the function fails ({reason})") from error
            return MeanOverSamples(_checked_sum(values, name, predictions), len(predictions.labels))

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
