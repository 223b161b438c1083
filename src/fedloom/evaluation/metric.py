"""The contract of a metric: a state that is computed batch by batch, merges, and gives one number.

A metric is a frozen dataclass whose fields are sums over samples: int, float, or a tensor. So it merges over batches,
clients, workers and the nodes of a federation, in the order of the client ids. Nothing else in fedloom names a metric:
a registered one appears in metrics.jsonl, summary.json, tables, reports and over Flower. `docs/how-to/own-metric.md`
has an example.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self, cast

import torch
from pydantic import Field
from torch import Tensor

from fedloom.core.registry import Registry

MetricKinds = Mapping[str, "type[Metric]"]
_LARGEST = 2**53  # of a count from another machine; a float64 holds it exactly


class Predictions(NamedTuple):
    """The class scores of a model for a batch, with the true labels.

    logits: class scores [B, C] float. labels: true classes [B] int64. targets: [C] int64, the class for which an attack
    wants each class to be taken, -1 for none; None if there is no such attack.
    """

    logits: Tensor
    labels: Tensor
    targets: Tensor | None = None


class Metric(ABC):
    """The mergeable state of a metric. Its fields are sums over samples.

    over: "clients" reports the unweighted mean over clients where the protocol tests clients, "honest samples" the
    value on the pooled samples of the clients that do not misbehave. detailed: also report each client, the pooled
    samples, the honest clients and the method's other predictors.
    """

    __slots__ = ()
    over: ClassVar[Literal["clients", "honest samples"]] = "clients"
    detailed: ClassVar[bool] = True

    @classmethod
    @abstractmethod
    def new(cls, predictions: Predictions) -> Self:
        """The state of one batch."""

    @abstractmethod
    def compute(self) -> float:
        """The value of the metric; NaN where it is not defined, for example without samples."""

    def merge(self, further: Self) -> Self:
        """The state of both sets of samples: every field is added."""
        names = [f.name for f in dataclasses.fields(self)]  # type: ignore[arg-type]
        return type(self)(*(getattr(self, name) + getattr(further, name) for name in names))

    def check(self, total: int) -> None:  # noqa: B027 (most metrics have nothing to check)
        """Raise `ValueError` for a state that `total` samples cannot have; called for states from other machines."""


METRICS: Registry[type[Metric]] = Registry("metric", home="fedloom.evaluation.metrics")


@dataclass(frozen=True, slots=True)
class MetricStates:
    """The states of all metrics on the same samples, by name. total: the number of samples."""

    total: Annotated[int, Field(ge=0, le=2**40)]  # sums of such counts fit 64 bits
    states: Mapping[str, Metric] = field(default_factory=dict)

    @staticmethod
    def new(predictions: Predictions, kinds: MetricKinds) -> MetricStates:
        """The states of one batch."""
        return MetricStates(len(predictions.labels), {name: kind.new(predictions) for name, kind in kinds.items()})

    @staticmethod
    def merged(parts: Iterable[MetricStates]) -> MetricStates:
        """All parts as one, added in their order; parts without samples count for nothing."""
        total, states = 0, dict[str, Metric]()
        for part in parts:
            total += part.total
            for name, state in part.states.items():
                states[name] = states[name].merge(state) if name in states else state
        return MetricStates(total, states)

    def value(self, name: str) -> float:
        """The value of a metric; NaN without samples."""
        return self.states[name].compute() if name in self.states else math.nan

    @staticmethod
    def from_plain(plain: MetricStates, example: MetricStates) -> MetricStates:
        """The states that another machine sent as plain numbers and lists (`core/plain.py`).

        example: states of any batch of the same run, whose types, dtypes and shapes the plain ones must have. Raises
        `ValueError` for plain values that cannot be such states, and what a metric raises that cannot use them.
        """
        reported, total = cast(Mapping[str, Mapping[str, Any]], plain.states), plain.total
        names = example.states.keys() if total else set[str]()
        if reported.keys() != names:
            raise ValueError(f"states of {', '.join(sorted(reported)) or 'no metric'}; need {', '.join(sorted(names))}")
        states = {name: _state(name, reported[name], example.states[name], total) for name in example.states if total}
        return MetricStates(total, states)


def _state(name: str, plain: Mapping[str, Any], example: Metric, total: int) -> Metric:
    keys = [key.name for key in dataclasses.fields(example)]  # type: ignore[arg-type]
    if list(plain) != keys:
        raise ValueError(f"{name}: need the fields {', '.join(keys)}")
    state = type(example)(*(_field(f"{name}.{key}", plain[key], getattr(example, key)) for key in keys))
    state.check(total)
    state.compute()  # a state that it cannot take would end the run later
    return state


def _field(name: str, value: Any, example: Any) -> Any:
    if isinstance(example, Tensor):
        if not isinstance(value, list):
            raise ValueError(f"{name}: need a list of numbers")
        tensor = torch.tensor(value, dtype=torch.float64)
        if tensor.shape != example.shape:
            raise ValueError(f"{name}: shape {list(tensor.shape)}; need {list(example.shape)}")
        if not example.is_floating_point() and not bool((tensor.abs() <= _LARGEST).all() and (tensor % 1 == 0).all()):
            raise ValueError(f"{name}: need whole numbers up to {_LARGEST}")
        return tensor.to(example.dtype)
    kind = type(example)
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ValueError(f"{name}: need {kind.__name__}")
    if kind is int and abs(value) > _LARGEST:
        raise ValueError(f"{name}: need at most {_LARGEST}")
    return kind(value)
