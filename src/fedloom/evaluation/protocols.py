"""The four evaluation protocols: which model is tested, on whose data. None of them is "the" accuracy.

| protocol | model | data | reported accuracy |
|---|---|---|---|
| global/global | the server's | the whole global test set | correct / total |
| global/local | the server's | each client's own test view | unweighted mean over clients |
| personal/global | each client's | the whole global test set | unweighted mean over clients |
| personal/local | each client's | each client's own test view | unweighted mean over clients |

A fifth, `few-shot` (`evaluation/fewshot.py`), tests the server's features on classes that may be new.

All N clients are tested, sampled or not, after aggregation; a client without samples in the split is left out of the
mean, and `clients` says how many were in it. A metric that is not defined for some of them is averaged over the others,
whose number is `<metric>_clients`. `accuracy_pooled` is the same with every sample weighing the same. Where
clients misbehave, `accuracy_honest` is the mean over the others, and `attack_success` the share of samples that are
taken for what the attack wants, on the data of the others where clients are tested.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedloom._renamed import tell_new_names
from fedloom.core.errors import ConfigError
from fedloom.data.scenario import Scenario
from fedloom.evaluation.metric import METRICS, MetricKinds, MetricStates, Predictions
from fedloom.evaluation.metrics import ALWAYS
from fedloom.methods.contract.phases import Predictor
from fedloom.nets.loaded_net import LoadedNet

PROTOCOLS = ("global/global", "global/local", "personal/global", "personal/local")
_BATCHES_OF_SLICE = 4  # enough work to be worth a message to another process


def offered_protocols(models: Collection[str]) -> tuple[str, ...]:
    """Return the protocols that test one of these models, "global" or "personal"."""
    return tuple(protocol for protocol in PROTOCOLS if protocol.partition("/")[0] in models)


@dataclass(frozen=True, slots=True)
class Scores:
    """Results on one split ("test" or "val"): of all, and of each client where the protocol tests clients.

    kinds: the metrics, by name. also: scores of the method's other predictors, by name, where they were asked for. bad:
    clients that misbehave in this scenario; all data here are clean.
    """

    split: str
    pooled: MetricStates
    clients: Mapping[int, MetricStates]
    kinds: MetricKinds
    also: Mapping[str, Scores] = field(default_factory=dict)
    bad: tuple[int, ...] = ()

    def value(self, name: str) -> float:
        """A metric as the protocol reports it: the mean over clients, or its value where there is one test.

        NaN where it is not defined, for example for no client.
        """
        over = self.kinds[name].over
        if over == "honest samples":
            honest = self._honest()
            return (MetricStates.merged(honest.values()) if honest else self.pooled).value(name)
        if over == "samples" or not self.clients:
            return self.pooled.value(name)
        values = self._defined(name)
        return sum(values) / len(values) if values else math.nan

    def _defined(self, name: str) -> list[float]:
        """The values of the clients where a metric is defined. NaN that says that a model diverged is a value."""
        values = [states.value(name) for states in self.clients.values() if states.total]
        return [value for value in values if self._is_measured(name, value)]

    def _is_measured(self, name: str, value: float) -> bool:
        return self.kinds[name].may_diverge or not math.isnan(value)

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
        usual = [name for name, kind in self.kinds.items() if kind.over != "honest samples"]
        detailed = [name for name in usual if self.kinds[name].detailed]
        values = self._measured({name: self.value(name) for name in usual})
        if self.clients:
            pooled = {name: self.pooled.value(name) for name in detailed if self._is_pooled(name)}
            values |= self._measured(pooled, "_pooled")
            values["clients"] = sum(1 for states in self.clients.values() if states.total)
            defined = {name: len(self._defined(name)) for name in usual if self.kinds[name].over == "clients"}
            values |= {f"{name}_clients": count for name, count in defined.items() if count != values["clients"]}
        honest = self._honest()
        if self.bad and any(states.total for states in honest.values()):
            honest_scores = Scores(self.split, self.pooled, honest, self.kinds)
            values |= self._measured({name: honest_scores.value(name) for name in detailed}, "_honest")
        others = {name: self.value(name) for name in self.kinds if name not in usual}
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
        return (self.kinds[name].shared or name) in self.pooled.states

    def details(self) -> dict[str, dict[str, Any]]:
        """Further values of the metrics on all samples together, as JSON values: lists by class, bounds, notes."""
        by_name = {name: dict(self.pooled.details(name)) for name in METRICS.names()}
        return {name: finite(values) for name, values in by_name.items() if values}

    def client_values(self) -> dict[str, dict[int, float]]:
        """Each client's value of each detailed metric, by name and client, with each predictor in turn."""
        detailed = [name for name, kind in self.kinds.items() if kind.detailed]
        by_name = dict.fromkeys(detailed, self.clients)
        by_name |= {f"{name}/{other}": scores.clients for other, scores in self.also.items() for name in detailed}
        values: dict[str, dict[int, float]] = {name: {} for name in by_name}
        for name, clients in by_name.items():
            metric = name.partition("/")[0]
            for client, states in clients.items():
                value = states.value(metric)
                if states.total and self._is_measured(metric, value):
                    values[name][client] = value
        return values

    def _honest(self) -> dict[int, MetricStates]:
        return {client: states for client, states in self.clients.items() if client not in self.bad}


def finite(values: Any) -> Any:
    """The same JSON values with None for each number that is not finite."""
    if isinstance(values, dict):
        return {name: finite(value) for name, value in values.items()}
    if isinstance(values, list):
        return [finite(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values


@tell_new_names("fedloom.evaluation.protocols.Evaluator")
class Evaluator:
    """Tests predictors on a scenario; `batch` samples at a time.

    A test of the server's model on the whole test set is cut into slices of whole batches, which engines may run on
    several workers. Neither slices nor batches depend on the engine, so every engine finds the same bits.

    also: further predictors of the method to test in the same way, e.g. Fed-CO2's "online" and "offline". metrics:
    names in `METRICS` beside those that are always computed. scores_mib: memory for the scores of one model, in MiB;
    metrics that need more count them in bins. `splits` are those that can be tested. Raises `ConfigError` if the test
    set has other classes than were trained.
    """

    def __init__(
        self,
        scenario: Scenario,
        protocol: str,
        *,
        batch: int,
        also: Sequence[str] = (),
        metrics: Sequence[str] = (),
        scores_mib: float = 64,
    ) -> None:
        if scenario.test_set.classes != scenario.train_set.classes:
            raise ConfigError(
                f"evaluation.protocol = '{protocol}': the test set of {scenario.name} has other classes than its "
                "training set; use few-shot"
            )
        self.scenario, self.batch = scenario, batch
        self.kind, self.where = protocol.split("/")
        self.also = tuple(name for name in dict.fromkeys(also) if name != self.kind)
        self.names = (self.kind, *self.also)
        attack = scenario.attack if scenario.bad else None
        targets = None if attack is None else attack.target_classes(scenario.num_classes)
        self.targets = None if targets is None else targets.to(scenario.test_set.y.device)
        self.kinds = {name: METRICS.get(name) for name in dict.fromkeys((*ALWAYS, *metrics))}
        self._scores_bytes = int(scores_mib * 2**20)
        self._of_scores = [name for name in metrics if self.kinds[name].needs_scores]
        self.splits = ("test", "val") if len(scenario.val.order) else ("test",)

    def slices(self, split: str) -> int:
        """The number of slices in which the server's model is tested; 0 if it is tested on each client's samples."""
        if self.where == "local":
            return 0
        if self.scenario.test_set.y.device.type != "cpu":
            return 1  # there is one worker, and it would copy the weights to the device for each slice
        return max(1, -(-len(self._all_indices(split)) // (self.batch * _BATCHES_OF_SLICE)))

    def states(self, live: LoadedNet, predictor: Predictor, client: int, split: str) -> MetricStates:
        """The metric states of a predictor, whose weights `live` has, on what the protocol tests it on.

        Args:
            live: the net with the predictor's weights.
            predictor: says how the net predicts.
            client: whose test it is; -1, -2, ... for the first, second, ... slice of a test of the server's model.
            split: "val" or "test".
        """
        if self.where == "local":
            views = self.scenario.test if split == "test" else self.scenario.val
            return self._test(live, predictor, split, views.tensor(client))
        indices, slices = self._all_indices(split), self.slices(split)
        if client < 0 and slices > 1:
            first = (-1 - client) * self.batch * _BATCHES_OF_SLICE
            indices = indices[first : first + self.batch * _BATCHES_OF_SLICE]
        return self._test(live, predictor, split, indices)

    def scores(self, split: str, tested: Mapping[int, Mapping[str, MetricStates]]) -> Scores:
        """The scores of all tests of a split: metric states by client or slice (as in `states`) and predictor."""
        by_predictor = {
            name: {client: tested[client][name] for client in sorted(tested, key=abs)} for name in self.names
        }
        if self.where == "global" and self.kind == "global":  # all samples together are one set
            by_predictor = {name: {-1: MetricStates.merged(states.values())} for name, states in by_predictor.items()}
        main, *others = (self._scores(split, by_predictor[name]) for name in self.names)
        also = dict(zip(self.also, others, strict=True))
        return Scores(split, main.pooled, main.clients, self.kinds, also, self.scenario.bad)

    def tests_on_clients(self, split: str) -> bool:
        """Whether the tests are the clients' own: of personal models, or on samples that nobody else reads."""
        return self.kind == "personal" or (self.scenario.remote and (self.where == "local" or split == "val"))

    def total(self, client: int, split: str) -> int:
        """Samples on which the personal models of a client are tested."""
        if self.where == "global":
            return len(self.scenario.test_set) if split == "test" else len(self.scenario.val.order)
        views = self.scenario.test if split == "test" else self.scenario.val
        return len(views[client])

    def names_in(self, offered: Collection[str]) -> list[str]:
        """The predictors that are tested, without those of `also` that only the model of another protocol offers."""
        return [name for name in self.names if name == self.kind or name in offered]

    def leave_to_others(self, offered: Collection[str]) -> None:
        """Leave out of `also` the predictors that are not offered here: another protocol of the run tests them."""
        self.names = tuple(self.names_in(offered))
        self.also = self.names[1:]

    def pick(self, offered: dict[str, Predictor], name: str) -> Predictor:
        """The predictor called `name`. Raises `ConfigError` if it is not among those offered."""
        if name in offered:
            return offered[name]
        if name != self.kind:
            raise ConfigError(f"evaluation.also = '{name}': the method offers {', '.join(sorted(offered))}")
        raise ConfigError(
            f"evaluation.protocol = '{self.kind}/{self.where}': the method has no {self.kind} model; "
            f"use {'personal' if self.kind == 'global' else 'global'}/global or "
            f"{'personal' if self.kind == 'global' else 'global'}/local"
        )

    def example_states(self) -> MetricStates:
        """Metric states of one made-up sample: states from other machines must have their types and shapes."""
        device = self.scenario.test_set.y.device
        logits = torch.zeros(1, self.scenario.num_classes, device=device)
        labels = torch.zeros(1, dtype=torch.int64, device=device)
        states = MetricStates.new(Predictions(logits, labels, self.targets, self._scores_bytes), self.kinds)
        return (states if self.kind == "global" else states.of_one_model()).portable()

    def check(self, offered: dict[str, Predictor]) -> None:
        """Raise `ConfigError` unless everything that is to be tested is among the predictors offered, with scores where
        a requested metric needs them."""
        for name in self.names:
            if self.pick(offered, name).labels_only and self._of_scores:
                raise ConfigError(
                    f"evaluation.metrics = {self._of_scores}: need scores, and the method's {name} predictor gives "
                    "classes alone; leave them out"
                )

    def _all_indices(self, split: str) -> Tensor:
        return (
            torch.arange(len(self.scenario.test_set)) if split == "test" else torch.from_numpy(self.scenario.val.order)
        )

    def _scores(self, split: str, states: dict[int, MetricStates]) -> Scores:
        if -1 in states:
            return Scores(split, states[-1], {}, self.kinds)
        pooled = MetricStates.merged(s if self.kind == "global" else s.poolable() for s in states.values())
        return Scores(split, pooled, {client: s.reduced() for client, s in states.items()}, self.kinds)

    @torch.no_grad()
    def _test(self, live: LoadedNet, predictor: Predictor, split: str, indices: Tensor) -> MetricStates:
        live.net.eval()
        data = self.scenario.test_set if split == "test" else self.scenario.train_set
        states = MetricStates(0)
        for part in torch.split(indices, self.batch) if len(indices) else ():
            logits = predictor.logits(live.net, data.gather(part))
            predictions = Predictions(logits, data.y[part], self.targets, self._scores_bytes)
            states = MetricStates.merged([states, MetricStates.new(predictions, self.kinds)])
        return states if self.kind == "global" else states.of_one_model()
