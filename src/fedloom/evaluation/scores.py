"""The scores of one split: of all samples together, and of each client."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedloom.evaluation.metric import METRICS, MetricKinds, MetricStates

_MOST_NUMBERS = 1_500_000  # of all clients in one protocol: some 10 MB in a file


@dataclass(frozen=True, slots=True)
class Scores:
    """Results on one split ("test" or "val"): of all, and of each client where the protocol tests clients.

    Attributes:
        metrics: their classes, by name.
        also: scores of the method's other predictors, by name, where they were asked for.
        bad: clients that misbehave in this scenario; all data here are clean.
        client_details: what a run keeps of single clients from its last test, by client and name.
    """

    split: str
    pooled: MetricStates
    clients: Mapping[int, MetricStates]
    metrics: MetricKinds
    also: Mapping[str, Scores] = field(default_factory=dict)
    bad: tuple[int, ...] = ()
    client_details: Mapping[int, Mapping[str, list[int]]] = field(default_factory=dict)
    _of_clients: dict[str, dict[int, float]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def value(self, name: str) -> float:
        """A metric as the protocol reports it: the mean over clients, or its value where there is one test.

        NaN where it is not defined, for example for no client.
        """
        over = self.metrics[name].over
        if over == "honest samples":
            honest = self._honest()
            return (MetricStates.merged(honest.values()) if honest else self.pooled).value(name)
        if over == "samples" or not self.clients:
            return self.pooled.value(name)
        values = self._defined(name).values()
        return sum(values) / len(values) if values else math.nan

    def _defined(self, name: str) -> dict[int, float]:
        """The values of a metric by client, where it is defined. NaN that says that a model diverged is a value."""
        if name not in self._of_clients:
            values = {client: states.value(name) for client, states in self.clients.items() if states.total}
            self._of_clients[name] = {client: v for client, v in values.items() if self._is_measured(name, v)}
        return self._of_clients[name]

    def _is_measured(self, name: str, value: float) -> bool:
        return self.metrics[name].may_diverge or not math.isnan(value)

    @property
    def accuracy(self) -> float:
        """The protocol's accuracy in [0, 1]."""
        return self.value("accuracy")

    @property
    def loss(self) -> float:
        """The protocol's cross-entropy in nats."""
        return self.value("loss")

    def values(self) -> dict[str, float]:
        """Measures of the whole run by name; a metric that is not defined on these samples is left out."""
        usual = [name for name, kind in self.metrics.items() if kind.over != "honest samples"]
        detailed = [name for name in usual if self.metrics[name].detailed]
        values = self._measured({name: self.value(name) for name in usual})
        if self.clients:
            pooled = {name: self.pooled.value(name) for name in detailed if self._is_pooled(name)}
            values |= self._measured(pooled, "_pooled")
            values["clients"] = sum(1 for states in self.clients.values() if states.total)
            defined = {name: len(self._defined(name)) for name in usual if self.metrics[name].over == "clients"}
            values |= {f"{name}_clients": count for name, count in defined.items() if count != values["clients"]}
        honest = self._honest()
        if self.bad and any(states.total for states in honest.values()):
            merged = MetricStates.merged(states.poolable() for states in honest.values())
            honest_scores = Scores(self.split, merged, honest, self.metrics)
            values |= self._measured({name: honest_scores.value(name) for name in detailed}, "_honest")
        others = {name: self.value(name) for name in self.metrics if name not in usual}
        values |= {name: value for name, value in others.items() if not math.isnan(value)}
        for predictor, scores in self.also.items():
            values |= self._measured({name: scores.value(name) for name in detailed}, f"/{predictor}")
        return values

    def _measured(self, values: Mapping[str, float], suffix: str = "") -> dict[str, float]:
        """The values by name and suffix, without those of metrics that are not defined on these samples."""
        without_samples = not self.pooled.total
        measured = [name for name, value in values.items() if without_samples or self._is_measured(name, value)]
        return {f"{name}{suffix}": values[name] for name in measured}

    def _is_pooled(self, name: str) -> bool:
        return (self.metrics[name].shared or name) in self.pooled.states

    def details(self) -> dict[str, dict[str, Any]]:
        """Further values of the metrics on all samples together, as JSON values: lists by class, bounds, notes."""
        by_name = {name: dict(self.pooled.details(name)) for name in METRICS.names()}
        return {name: finite(values) for name, values in by_name.items() if values}

    def client_values(self) -> dict[str, dict[int, float]]:
        """Each client's value of each detailed metric, by name and client, with each predictor in turn."""
        detailed = [name for name, kind in self.metrics.items() if kind.detailed]
        values = {name: self._defined(name) for name in detailed}
        also = {f"{name}/{other}": scores._defined(name) for other, scores in self.also.items() for name in detailed}
        return values | also

    def _honest(self) -> dict[int, MetricStates]:
        return {client: states for client, states in self.clients.items() if client not in self.bad}


def details_of_clients(states: Mapping[int, MetricStates]) -> dict[int, Mapping[str, list[int]]]:
    """Return what a run keeps of each client's complete states; of those alone that fit into 1.5 million numbers.

    Args:
        states: metric states by client.
    """
    by_client: dict[int, Mapping[str, list[int]]] = {}
    room = _MOST_NUMBERS
    for client, of_client in states.items():
        details = {name: numbers for s in of_client.states.values() for name, numbers in s.client_details().items()}
        room -= sum(map(len, details.values()))
        if room < 0:
            break
        by_client[client] = details
    return by_client


def finite(values: Any) -> Any:
    """The same JSON values with None for each number that is not finite."""
    if isinstance(values, dict):
        return {name: finite(value) for name, value in values.items()}
    if isinstance(values, list):
        return [finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values
