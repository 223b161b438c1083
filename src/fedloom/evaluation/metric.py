"""The contract of a metric: a state that is computed batch by batch, merges, and gives one number.

A metric is a frozen dataclass whose fields are sums over samples: int, float, or a tensor. So it merges over batches,
clients, workers and the nodes of a federation, in the order of the client ids. Nothing else in fedloom names a metric:
a registered one appears in metrics.jsonl, summary.json, tables, reports and over Flower.

Example, a metric of a plug-in (entry point group `fedloom.metrics`, or registered before the run):
    @METRICS.register("brier")
    @dataclass(frozen=True, slots=True)
    class Brier(Metric):
        squares: float
        total: int

        @classmethod
        def new(cls, predictions):
            shares = predictions.logits.double().softmax(1)
            truth = torch.nn.functional.one_hot(predictions.labels, shares.shape[1])
            return cls(float((shares - truth).square().sum()), len(shares))

        def compute(self):
            return self.squares / self.total if self.total else math.nan
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Self, get_type_hints

import torch
from torch import Tensor

from fedloom.core.registry import Registry

MetricKinds = Mapping[str, "type[Metric]"]


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

    total: int
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

    def to_plain(self) -> dict[str, dict[str, Any]]:
        """The states as plain numbers and lists, for JSON."""
        return {
            name: {
                key.name: value.tolist() if isinstance(value := getattr(state, key.name), Tensor) else value
                for key in dataclasses.fields(state)  # type: ignore[arg-type]
            }
            for name, state in self.states.items()
        }

    @staticmethod
    def from_plain(total: int, plain: Mapping[str, Mapping[str, Any]], kinds: MetricKinds) -> MetricStates:
        """The states that `to_plain` gave on another machine. Raises `ValueError` for what cannot be such states."""
        names = set(kinds) if total else set()
        if plain.keys() != names:
            raise ValueError(f"states of {', '.join(sorted(plain)) or 'no metric'}; need {', '.join(sorted(names))}")
        return MetricStates(total, {name: _state(kinds[name], name, plain[name], total) for name in kinds if total})


def _state(kind: type[Metric], name: str, plain: Mapping[str, Any], total: int) -> Metric:
    types = get_type_hints(kind)
    keys = [key.name for key in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if list(plain) != keys:
        raise ValueError(f"{name}: need the fields {', '.join(keys)}")
    state = kind(*(_field(f"{name}.{key}", plain[key], types[key]) for key in keys))
    state.check(total)
    return state


def _field(name: str, value: Any, type_: Any) -> Any:
    if type_ is Tensor:
        if not isinstance(value, list):
            raise ValueError(f"{name}: need a list of numbers")
        whole = all(isinstance(number, int) for number in value)
        return torch.tensor(value, dtype=torch.int64 if whole else torch.float64)
    if type(value) is not type_ and not (type_ is float and type(value) is int):
        raise ValueError(f"{name}: need {type_.__name__}")
    return type_(value)
