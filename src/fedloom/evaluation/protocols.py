"""The four evaluation protocols: which model is tested, on whose data. None of them is "the" accuracy.

| protocol | model | data | reported accuracy |
|---|---|---|---|
| global/global | the server's | the whole global test set | correct / total |
| global/local | the server's | each client's own test view | unweighted mean over clients |
| personal/global | each client's | the whole global test set | unweighted mean over clients |
| personal/local | each client's | each client's own test view | unweighted mean over clients |

A fifth, `few-shot` (`evaluation/fewshot.py`), tests the server's features on classes that may be new.

All N clients are tested, sampled or not, after aggregation; a client without samples in the split is left out of the
mean, and `clients` says how many were in it. `accuracy_pooled` is the same with every sample weighing the same. Where
clients misbehave, `accuracy_honest` is the mean over the others, and `attack_success` the share of samples that are
taken for what the attack wants, on the data of the others where clients are tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.evaluation.metric import METRICS, MetricKinds, MetricStates, Predictions
from fedloom.evaluation.metrics import ALWAYS
from fedloom.methods.contract.phases import Predictor
from fedloom.nets.loaded_net import LoadedNet

PROTOCOLS = ("global/global", "global/local", "personal/global", "personal/local")
NetOfClient = Callable[[int], LoadedNet]


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
        """A metric as the protocol reports it: the mean over clients, or its value where there is one test."""
        if self.kinds[name].over == "honest samples":
            honest = self._honest()
            return (MetricStates.merged(honest.values()) if honest else self.pooled).value(name)
        values = [states.value(name) for states in self.clients.values() if states.total]
        return sum(values) / len(values) if values else self.pooled.value(name)

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
        usual = [name for name, kind in self.kinds.items() if kind.over == "clients"]
        detailed = [name for name in usual if self.kinds[name].detailed]
        values = {name: self.value(name) for name in usual}
        if self.clients:
            values |= {f"{name}_pooled": self.pooled.value(name) for name in detailed}
            values["clients"] = sum(1 for states in self.clients.values() if states.total)
        honest = self._honest()
        if self.bad and any(states.total for states in honest.values()):
            honest_scores = Scores(self.split, self.pooled, honest, self.kinds)
            values |= {f"{name}_honest": honest_scores.value(name) for name in detailed}
        others = {name: self.value(name) for name in self.kinds if name not in usual}
        values |= {name: value for name, value in others.items() if not math.isnan(value)}
        return values | {
            f"{name}/{predictor}": scores.value(name) for predictor, scores in self.also.items() for name in detailed
        }

    def client_values(self) -> dict[str, dict[int, float]]:
        """Each client's value of each detailed metric, by name and client, with each predictor in turn."""
        detailed = [name for name, kind in self.kinds.items() if kind.detailed]
        by_name = dict.fromkeys(detailed, self.clients)
        by_name |= {f"{name}/{other}": scores.clients for other, scores in self.also.items() for name in detailed}
        return {
            name: {client: states.value(name.partition("/")[0]) for client, states in clients.items() if states.total}
            for name, clients in by_name.items()
        }

    def _honest(self) -> dict[int, MetricStates]:
        return {client: states for client, states in self.clients.items() if client not in self.bad}


class Evaluator:
    """Tests predictors on a scenario; `batch` samples at a time.

    net_of_client: the loaded net that fits a client's trees (-1: the server's). also: further predictors of the method
    to test in the same way, e.g. Fed-CO2's "online" and "offline". metrics: names in `METRICS` beside those that are
    always computed. `splits` are those that can be tested. Raises
    `ConfigError` if the test set has other classes than were trained.
    """

    def __init__(
        self,
        net_of_client: NetOfClient,
        scenario: Scenario,
        protocol: str,
        *,
        batch: int,
        also: Sequence[str] = (),
        metrics: Sequence[str] = (),
    ) -> None:
        if scenario.test_set.classes != scenario.train_set.classes:
            raise ConfigError(
                f"evaluation.protocol = '{protocol}': the test set of {scenario.name} has other classes than its "
                "training set; use few-shot"
            )
        self.net_of_client, self.scenario, self.batch = net_of_client, scenario, batch
        self.kind, self.where = protocol.split("/")
        self.also = tuple(name for name in dict.fromkeys(also) if name != self.kind)
        self.names = (self.kind, *self.also)
        attack = scenario.attack if scenario.bad else None
        targets = None if attack is None else attack.target_classes(scenario.num_classes)
        self.targets = None if targets is None else targets.to(scenario.test_set.y.device)
        self.kinds = {name: METRICS.get(name) for name in dict.fromkeys((*ALWAYS, *metrics))}
        self.splits = ("test", "val") if len(scenario.val.order) else ("test",)

    def scores(self, split: str, predictors: Iterator[tuple[int, dict[str, Predictor]]]) -> Scores:
        """Test on "test" or "val". `predictors` yields (client, its predictors); client -1 is the server.

        Raises `ConfigError` if the method offers no predictor of the protocol's kind, or of a name in `also`.
        """
        results: dict[str, dict[int, MetricStates]] = {name: {} for name in self.names}
        for client, offered in predictors:
            for name in results:
                results[name] |= self._tested(client, self.pick(offered, name), split)
        return self.joined(split, results)

    def joined(self, split: str, results: Mapping[str, dict[int, MetricStates]]) -> Scores:
        """The scores of what was found by predictor and client."""
        main, *others = (self._scores(split, results[name]) for name in self.names)
        also = dict(zip(self.also, others, strict=True))
        return Scores(split, main.pooled, main.clients, self.kinds, also, self.scenario.bad)

    def of_client(self, live: LoadedNet, predictor: Predictor, client: int, split: str) -> MetricStates:
        """One client's personal predictor, whose weights `live` has, on what the protocol tests it on."""
        (tested,) = self._on(live, predictor, client, split).values()
        return tested

    def of_server(self, offered: dict[str, Predictor], split: str) -> dict[str, MetricStates]:
        """The server's predictors on the samples of all clients in this scenario together, by name."""
        return {
            name: MetricStates.merged(self._tested(-1, self.pick(offered, name), split).values()) for name in self.names
        }

    def tests_on_clients(self, split: str) -> bool:
        """Whether the tests are the clients' own: of personal models, or on samples that nobody else reads."""
        return self.kind == "personal" or (self.scenario.remote and (self.where == "local" or split == "val"))

    def total(self, client: int, split: str) -> int:
        """Samples on which the personal models of a client are tested."""
        if self.where == "global":
            return len(self.scenario.test_set) if split == "test" else len(self.scenario.val.order)
        views = self.scenario.test if split == "test" else self.scenario.val
        return len(views[client])

    def of_clients(self, split: str, results: Mapping[str, dict[int, MetricStates]]) -> Scores:
        """The scores of what clients found, by predictor and client, where the tests are theirs."""
        if self.where == "global" and self.kind == "global":  # their samples together are one set
            results = {name: {-1: MetricStates.merged(by_client.values())} for name, by_client in results.items()}
        return self.joined(split, results)

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
        return MetricStates.new(Predictions(logits, labels, self.targets), self.kinds)

    def check(self, offered: dict[str, Predictor]) -> None:
        """Raise `ConfigError` unless everything that is to be tested is among the predictors offered."""
        for name in self.names:
            self.pick(offered, name)

    def _tested(self, client: int, predictor: Predictor, split: str) -> dict[int, MetricStates]:
        """One predictor's results by client; those on the whole test set under the predictor's own number."""
        live = self.net_of_client(client)
        live.load(predictor.tree)
        return self._on(live, predictor, client, split)

    def _on(self, live: LoadedNet, predictor: Predictor, client: int, split: str) -> dict[int, MetricStates]:
        data = self.scenario.test_set if split == "test" else self.scenario.train_set
        views = self.scenario.test if split == "test" else self.scenario.val
        if self.where == "global":
            everything = torch.arange(len(data)) if split == "test" else torch.from_numpy(views.order)
            return {client: self._test(live, predictor, data, everything)}
        held = range(self.scenario.clients) if client < 0 else (client,)
        return {k: self._test(live, predictor, data, views.tensor(k)) for k in held}

    def _scores(self, split: str, states: dict[int, MetricStates]) -> Scores:
        if -1 in states:
            return Scores(split, states[-1], {}, self.kinds)
        return Scores(split, MetricStates.merged(states.values()), states, self.kinds)

    @torch.no_grad()
    def _test(self, live: LoadedNet, predictor: Predictor, data: Dataset, indices: Tensor) -> MetricStates:
        live.net.eval()
        parts = []
        for part in torch.split(indices, self.batch) if len(indices) else ():
            logits = predictor.logits(live.net, data.gather(part))
            parts.append(MetricStates.new(Predictions(logits, data.y[part], self.targets), self.kinds))
        return MetricStates.merged(parts)
