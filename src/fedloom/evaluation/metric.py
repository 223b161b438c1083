"""The contract of a metric: a state that is computed batch by batch, merges, and gives a number.

A state is a frozen dataclass whose fields are sums over samples: int, float, or a tensor. So it merges over batches,
clients, workers and the nodes of a federation, in the order of the client ids. See `fedloom help own-metric`."""

import copyreg
import dataclasses
import functools
import math
import re
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, cast

import torch
from torch import Tensor

from fedloom.core.files import without_nan
from fedloom.core.registry import Registry
from fedloom.core.text import lists_by_key

LARGEST_SUM = 1e100  # of what a client reports, if it is finite: 32 bits give less, and sums over clients stay finite

MetricKinds = Mapping[str, "type[Metric]"]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """The group of each sample of a batch, indices [B] int64 in 0 .. count - 1."""

    indices: Tensor
    count: int


@dataclass(frozen=True, eq=False)
class Predictions:
    """The class scores of a model for a batch, with the true labels. Metrics share values computed from them.

    Attributes:
        logits: class scores [B, C], float.
        labels: true classes [B], int64; of several labels [B, L]: 1, 0 or -1 (not recorded).
        targets: [C] int64, the class that an attack wants for each class, -1 for none; None without such an attack.
        scores_bytes: memory that the scores of a metric may take before they are counted in bins.
        owners: the client that holds each sample, where a model is tested on other clients' data; else None.
        domains: the sample's domain, where a metric asks for it; else None.
        indices: the place of each sample in the tested data [B] int64, where they are known.
        bins: counts of scores in a first test [2, C, K] int64, by which a second one counts them in finer bins."""

    logits: Tensor
    labels: Tensor
    targets: Tensor | None = None
    scores_bytes: int = 64 << 20
    owners: Groups | None = None
    domains: Groups | None = None
    indices: Tensor | None = None
    bins: Tensor | None = None

    @functools.cached_property
    def predicted(self) -> Tensor:
        """The class of the highest score [B] int64, the lowest of equal ones; of several labels scores above 0."""
        return (self.logits > 0).long() if self.labels.dim() == 2 else self.logits.argmax(1)

    @functools.cached_property
    def log_probabilities(self) -> Tensor:
        """log softmax [B, C] float64, on the CPU."""
        return self.logits.cpu().double().log_softmax(1)

    @functools.cached_property
    def probabilities(self) -> Tensor:
        """softmax [B, C] float64, on the CPU."""
        return self.log_probabilities.exp()


class Metric(ABC):
    """The mergeable state of a metric. Its fields are sums over samples.

    Attributes:
        over: "clients" reports the unweighted mean over the clients where the metric is defined, if the protocol tests
            clients; "samples" the value on all samples together; "honest samples" the value on those of the clients
            that do not misbehave.
        detailed: also report each client, the pooled samples, the honest clients and the method's other predictors.
        shared: the name of a state from which several metrics compute their values; they are derived from the class
            that has it, and add no fields.
        needs_scores: whether predicted classes are not enough.
        may_diverge: whether NaN says that the model diverged; then a mean keeps it.
        pools_models: whether the states of several models may be merged.
        on_request: report details only where the metric is asked for, and not with others that share its state.
        multi_label: whether it is defined for samples with several labels.
        smooth: whether its value changes smoothly with the weights of samples.
        higher_is_better: which of two values selects a round or a trial; None if neither may, as the best is between.
    """

    over: ClassVar[Literal["clients", "samples", "honest samples"]] = "clients"
    detailed: ClassVar[bool] = True
    shared: ClassVar[str] = ""
    needs_scores: ClassVar[bool] = False
    may_diverge: ClassVar[bool] = False
    pools_models: ClassVar[bool] = True
    on_request: ClassVar[bool] = False
    multi_label: ClassVar[bool] = False
    smooth: ClassVar[bool] = True
    higher_is_better: ClassVar[bool | None] = True

    @classmethod
    @abstractmethod
    def new(cls, predictions: Predictions) -> Self:
        """The state of one batch."""

    @classmethod
    def new_for(cls, predictions: Predictions, kinds: "Iterable[type[Metric]]") -> Self:
        """The state of one batch, from which the metrics `kinds` that share it compute their values."""
        return cls.new(predictions)

    @classmethod
    def state_type(cls) -> "type[Metric]":
        """The class of the state, from which the metrics that share it are derived."""
        return next(base for base in cls.__mro__ if "shared" in base.__dict__) if cls.shared else cls

    @abstractmethod
    def compute(self) -> float:
        """The value of the metric; NaN where it is not defined, for example without samples."""

    def details(self) -> Mapping[str, Any]:
        """Further values by name, as JSON values: a list by class, a bound, a note."""
        return {}

    def client_details(self) -> Mapping[str, list[int]]:
        """Whole numbers by name that a run keeps of each client from its last test."""
        return {}

    def merge(self, further: Self) -> Self:
        """The state of both sets of samples: every field is added."""
        return type(self)(*[getattr(self, name) + getattr(further, name) for name in field_names(type(self))])

    def weighted(self, weight: float) -> Self:
        """The state in which each sample counts `weight` times."""
        values = [getattr(self, name) for name in field_names(type(self))]
        return type(self)(*[weight * (value.double() if isinstance(value, Tensor) else value) for value in values])

    def reduced(self) -> Self:
        """Reduce the complete state of a client to the part that a run keeps."""
        return self

    def portable(self) -> Self:
        """Reduce the state to sums and values of one shape, which may leave a node: no score of a single sample."""
        return self

    def check(self, total: int) -> None:  # noqa: B027 (most metrics have nothing to check)
        """Raise `ValueError` for a state that `total` samples cannot have; called for states from other machines."""

    # A generated one compares tuples, which fails for most tensors; classes with tensors keep this one by eq=False.
    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        pairs = [(getattr(self, name), getattr(other, name)) for name in field_names(type(self))]
        return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


@functools.cache
def field_names(kind: type[Metric]) -> tuple[str, ...]:
    """The names of the fields of a state."""
    return tuple([key.name for key in dataclasses.fields(kind)])  # type: ignore[arg-type]


class AtLevel(ABCMeta):
    """The class of metrics with a level in their name, which no module has as attributes; pickle keeps the name."""

    name: str


@functools.cache
def _at_level(kind: AtLevel, level: str) -> type[Metric] | None:
    """The same metric at another level, "0.9"; None unless it is a share above 0, and of a prevalence below 1."""
    if not re.fullmatch(r"0?\.\d+|1(\.0+)?", level) or not 0 < float(level) < 1 + ("@prevalence" not in kind.name):
        return None
    return cast(type[Metric], AtLevel(kind.__name__, (kind,), {"name": f"{kind.name.partition('=')[0]}={level}"}))


def _by_name(name: str) -> type[Metric]:
    return METRICS.get(name)


copyreg.pickle(AtLevel, lambda kind: (_by_name, (kind.name,)))  # type: ignore[arg-type, return-value]


class MetricRegistry(Registry[type[Metric]]):
    """The metrics by name. One that is registered with a level, `NAME=0.95`, is known at every other, as `NAME=0.9`."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or self._at_level(name) is not None

    def get(self, name: str) -> type[Metric]:
        """As `Registry.get`, also for other levels of a metric."""
        return self._at_level(name) or super().get(name)

    def why_unknown(self, name: str) -> str:
        """As `Registry.why_unknown`; says of a known metric that its level cannot be one."""
        stem, _, level = name.partition("=")
        bound = "below" if stem.endswith("prevalence") else "up to"
        for usual in [usual for usual in self.names() if usual.startswith(f"{stem}=")]:
            return f"'{level}' is no share above 0 and {bound} 1; did you mean '{usual}'?"
        return super().why_unknown(name)

    def _at_level(self, name: object) -> type[Metric] | None:
        stem, equals, level = name.partition("=") if isinstance(name, str) else ("", "", "")
        kinds = (kind for usual, kind in self if usual.startswith(f"{stem}=")) if equals else ()
        kind: Any = next((kind for kind in kinds if isinstance(kind, AtLevel)), None)
        return None if kind is None else _at_level(kind, level) if kind.name != name else kind


METRICS = MetricRegistry("metric", home="fedloom.evaluation.metrics")


@dataclass(frozen=True, slots=True)
class MetricStates:
    """The states of all metrics on the same samples, by name, or that of a state which several metrics share."""

    total: int
    states: Mapping[str, Metric] = field(default_factory=dict)

    @staticmethod
    def new(predictions: Predictions, kinds: MetricKinds) -> "MetricStates":
        """Return the states of one batch, of metrics by name."""
        sharing = lists_by_key((kind.shared or name, kind) for name, kind in kinds.items())
        states = {name: of[0].state_type().new_for(predictions, of) for name, of in sharing.items()}
        return MetricStates(len(predictions.labels), states)

    @staticmethod
    def merged(parts: "Iterable[MetricStates]") -> "MetricStates":
        """All parts as one, added in their order; parts without samples count for nothing."""
        total, states = 0, dict[str, Metric]()
        for part in parts:
            total += part.total
            for name, state in part.states.items():
                states[name] = states[name].merge(state) if name in states else state
        return MetricStates(total, states)

    def value(self, name: str) -> float:
        """The value of a metric; NaN without samples."""
        state = self._state_of(name)
        return math.nan if state is None else state.compute()

    def details(self, name: str) -> Mapping[str, Any]:
        """Further values of a metric; empty without samples."""
        state = self._state_of(name)
        return {} if state is None else state.details()

    def _state_of(self, name: str) -> Metric | None:
        """The state of a metric, in the metric's class where several metrics share it; None if it has none here."""
        if name in self.states or name not in METRICS:
            return self.states.get(name)
        kind = METRICS.get(name)
        state = self.states.get(kind.shared)
        return None if state is None else kind(*[getattr(state, key) for key in field_names(kind)])

    def of_one_model(self) -> "MetricStates":
        """Reduce the states whose scores may not be merged with those of other models."""
        return MetricStates(self.total, {name: s if s.pools_models else s.reduced() for name, s in self.states.items()})

    def poolable(self) -> "MetricStates":
        """Leave out the states that may not be merged with those of other models."""
        return MetricStates(self.total, {name: state for name, state in self.states.items() if state.pools_models})

    def weighted(self, weight: float) -> "MetricStates":
        """Weigh all states, as `Metric.weighted`."""
        return MetricStates(self.total, {name: state.weighted(weight) for name, state in self.states.items()})

    def reduced(self) -> "MetricStates":
        """Reduce all states, as `Metric.reduced`."""
        return MetricStates(self.total, {name: state.reduced() for name, state in self.states.items()})

    def portable(self) -> "MetricStates":
        """Reduce all states, as `Metric.portable`."""
        return MetricStates(self.total, {name: state.portable() for name, state in self.states.items()})


_MOST_NUMBERS = 1_500_000  # of all clients in one protocol: some 10 MB in a file


@dataclass(frozen=True, slots=True)
class Scores:
    """Results on one split ("test" or "val"): of all, and of each client where the protocol tests clients.

    Attributes:
        metrics: their classes, by name.
        also: scores of the method's other predictors, by name, where they were asked for.
        bad: clients that misbehave in this scenario; all data here are clean.
        client_details: numbers that a run keeps of single clients from its last test, by client and name."""

    split: str
    pooled: MetricStates
    clients: Mapping[int, MetricStates]
    metrics: MetricKinds
    also: "Mapping[str, Scores]" = field(default_factory=dict)
    bad: tuple[int, ...] = ()
    client_details: Mapping[int, Mapping[str, list[int]]] = field(default_factory=dict)
    _of_clients: dict[str, dict[int, float]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def value(self, name: str) -> float:
        """A metric as the protocol reports it: the mean over clients, or of the one test; NaN where it is undefined."""
        if self.metrics[name].over == "honest samples":
            honest = self._honest()
            return (MetricStates.merged(honest.values()) if honest else self.pooled).value(name)
        values = self.averaged(name)
        if values is None:
            return self.pooled.value(name)
        return sum(values.values()) / len(values) if values else math.nan

    def averaged(self, name: str) -> dict[int, float] | None:
        """The values by client whose mean is reported; None where that of all samples together is."""
        kind, values = self.metrics[name], self.defined(name) if self.metrics[name].over == "clients" else {}
        is_few = not kind.pools_models and 2 * len(values) < len(self.clients) and self.is_pooled(name)
        # a few clients shall not speak for the others
        return None if kind.over == "samples" or not self.clients or is_few else values

    def defined(self, name: str) -> dict[int, float]:
        """The values of a metric by client, where it is defined. NaN that says that a model diverged is a value."""
        if name not in self._of_clients:
            values = {client: states.value(name) for client, states in self.clients.items() if states.total}
            self._of_clients[name] = {client: v for client, v in values.items() if self._is_measured(name, v)}
        return self._of_clients[name]

    def is_pooled(self, name: str) -> bool:
        return (self.metrics[name].shared or name) in self.pooled.states

    def _is_measured(self, name: str, value: float) -> bool:
        return self.metrics[name].may_diverge or not math.isnan(value)

    def with_pooled(self, again: "Scores") -> "Scores":
        """The same scores with the pooled states of a second test."""
        also = {name: scores.with_pooled(again.also[name]) for name, scores in self.also.items()}
        return dataclasses.replace(self, pooled=again.pooled, also=also)

    def values(self) -> dict[str, float]:
        """Measures of the whole run by name; a metric that is not defined on these samples is left out."""
        usual = [name for name, kind in self.metrics.items() if kind.over != "honest samples"]
        detailed = [name for name in usual if self.metrics[name].detailed]
        values = self._measured({name: self.value(name) for name in usual})
        if self.clients:
            pooled = {name: self.pooled.value(name) for name in detailed if self.is_pooled(name)}
            values |= self._measured(pooled, "_pooled")
            values["clients"] = sum(1 for states in self.clients.values() if states.total)
            defined = {name: len(self.defined(name)) for name in usual if self.metrics[name].over == "clients"}
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

    def details(self) -> dict[str, dict[str, Any]]:
        """Further values of the metrics on all samples together, as JSON values: lists by class, bounds, notes."""
        names = dict.fromkeys((*(name for name, kind in METRICS if not kind.on_request), *self.metrics))
        by_name = {name: dict(self.pooled.details(name)) for name in names}
        return {name: without_nan(values) for name, values in by_name.items() if values}

    def client_values(self) -> dict[str, dict[int, float]]:
        """Each client's value of each detailed metric, by name and client, with each predictor in turn."""
        detailed = [name for name, kind in self.metrics.items() if kind.detailed]
        values = {name: self.defined(name) for name in detailed}
        also = {f"{name}/{other}": scores.defined(name) for other, scores in self.also.items() for name in detailed}
        return values | also

    def _honest(self) -> dict[int, MetricStates]:
        return {client: states for client, states in self.clients.items() if client not in self.bad}


def details_of_clients(states: Mapping[int, MetricStates]) -> dict[int, Mapping[str, list[int]]]:
    """Return the numbers that a run keeps of each client, of the first ones that fit 1.5 million numbers."""
    by_client, room = dict[int, Mapping[str, list[int]]](), _MOST_NUMBERS
    for client, of_client in states.items():
        details = {name: numbers for s in of_client.states.values() for name, numbers in s.client_details().items()}
        room -= sum(map(len, details.values()))
        if room < 0:
            break
        by_client[client] = details
    return by_client
