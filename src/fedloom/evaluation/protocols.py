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

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.evaluation.metrics import Tested
from fedloom.methods.contract.phases import Predictor
from fedloom.nets.loaded_net import LoadedNet

PROTOCOLS = ("global/global", "global/local", "personal/global", "personal/local")
NetOfClient = Callable[[int], LoadedNet]


@dataclass(frozen=True, slots=True)
class Scores:
    """Results on one split ("test" or "val"): of all, and of each client where the protocol tests clients.

    also: scores of the method's other predictors, by name, where they were asked for. bad: clients that misbehave in
    this scenario; all data here are clean.
    """

    split: str
    pooled: Tested
    clients: dict[int, Tested]
    also: dict[str, Scores] = field(default_factory=dict)
    bad: tuple[int, ...] = ()

    @property
    def accuracy(self) -> float:
        """The protocol's accuracy in [0, 1]: mean over clients, or correct / total where there is one test."""
        tested = [t.accuracy for t in self.clients.values() if t.total]
        return sum(tested) / len(tested) if tested else self.pooled.accuracy

    @property
    def loss(self) -> float:
        """Cross-entropy in nats, averaged in the same way."""
        tested = [t.loss for t in self.clients.values() if t.total]
        return sum(tested) / len(tested) if tested else self.pooled.loss

    def values(self) -> dict[str, float]:
        """Measures of the whole run by name."""
        values = {"accuracy": self.accuracy, "loss": self.loss}
        if self.clients:
            values["accuracy_pooled"] = self.pooled.accuracy
            values["clients"] = sum(1 for t in self.clients.values() if t.total)
        bad = set(self.bad)
        honest = {client: tested for client, tested in self.clients.items() if client not in bad}
        if self.bad and any(tested.total for tested in honest.values()):
            values["accuracy_honest"] = Scores(self.split, self.pooled, honest).accuracy
        aimed = Tested.sum(honest.values()) if honest else self.pooled
        if aimed.aimed:
            values["attack_success"] = aimed.fooled / aimed.aimed
        return values | {f"accuracy/{name}": tested.accuracy for name, tested in self.also.items()}


class Evaluator:
    """Tests predictors on a scenario; `batch` samples at a time.

    net_of_client: the loaded net that fits a client's trees (-1: the server's). also: further predictors of the method
    to test in the same way, e.g. Fed-CO2's "online" and "offline". `splits` are those that can be tested. Raises
    `ConfigError` if the test set has other classes than were trained.
    """

    def __init__(
        self, net_of_client: NetOfClient, scenario: Scenario, protocol: str, *, batch: int, also: Sequence[str] = ()
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
        aims = None if attack is None else attack.target_classes(scenario.num_classes)
        self.aims = None if aims is None else aims.to(scenario.test_set.y.device)
        self.splits = ("test", "val") if len(scenario.val.order) else ("test",)

    def scores(self, split: str, predictors: Iterator[tuple[int, dict[str, Predictor]]]) -> Scores:
        """Test on "test" or "val". `predictors` yields (client, its predictors); client -1 is the server.

        Raises `ConfigError` if the method offers no predictor of the protocol's kind, or of a name in `also`.
        """
        results: dict[str, dict[int, Tested]] = {name: {} for name in self.names}
        for client, offered in predictors:
            for name in results:
                results[name] |= self._tested(client, self.pick(offered, name), split)
        return self.joined(split, results)

    def joined(self, split: str, results: Mapping[str, dict[int, Tested]]) -> Scores:
        """The scores of what was found by predictor and client."""
        main, *others = (self._scores(split, results[name]) for name in self.names)
        also = dict(zip(self.also, others, strict=True))
        return Scores(split, main.pooled, main.clients, also, self.scenario.bad)

    def of_client(self, live: LoadedNet, predictor: Predictor, client: int, split: str) -> Tested:
        """One client's personal predictor, whose weights `live` has, on what the protocol tests it on."""
        (tested,) = self._on(live, predictor, client, split).values()
        return tested

    def of_server(self, offered: dict[str, Predictor], split: str) -> dict[str, Tested]:
        """The server's predictors on the samples of all clients in this scenario together, by name."""
        return {name: Tested.sum(self._tested(-1, self.pick(offered, name), split).values()) for name in self.names}

    def tests_on_clients(self, split: str) -> bool:
        """Whether the tests are the clients' own: of personal models, or on samples that nobody else reads."""
        return self.kind == "personal" or (self.scenario.remote and (self.where == "local" or split == "val"))

    def total(self, client: int, split: str) -> int:
        """Samples on which the personal models of a client are tested."""
        if self.where == "global":
            return len(self.scenario.test_set) if split == "test" else len(self.scenario.val.order)
        views = self.scenario.test if split == "test" else self.scenario.val
        return len(views[client])

    def of_clients(self, split: str, results: Mapping[str, dict[int, Tested]]) -> Scores:
        """The scores of what clients found, by predictor and client, where the tests are theirs."""
        if self.where == "global" and self.kind == "global":  # their samples together are one set
            results = {name: {-1: Tested.sum(by_client.values())} for name, by_client in results.items()}
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

    def check(self, offered: dict[str, Predictor]) -> None:
        """Raise `ConfigError` unless everything that is to be tested is among the predictors offered."""
        for name in self.names:
            self.pick(offered, name)

    def _tested(self, client: int, predictor: Predictor, split: str) -> dict[int, Tested]:
        """One predictor's results by client; those on the whole test set under the predictor's own number."""
        live = self.net_of_client(client)
        live.load(predictor.tree)
        return self._on(live, predictor, client, split)

    def _on(self, live: LoadedNet, predictor: Predictor, client: int, split: str) -> dict[int, Tested]:
        data = self.scenario.test_set if split == "test" else self.scenario.train_set
        views = self.scenario.test if split == "test" else self.scenario.val
        if self.where == "global":
            everything = torch.arange(len(data)) if split == "test" else torch.from_numpy(views.order)
            return {client: self._test(live, predictor, data, everything)}
        held = range(self.scenario.clients) if client < 0 else (client,)
        return {k: self._test(live, predictor, data, views.tensor(k)) for k in held}

    @staticmethod
    def _scores(split: str, tested: dict[int, Tested]) -> Scores:
        if -1 in tested:
            return Scores(split, tested[-1], {})
        return Scores(split, Tested.sum(tested.values()), tested)

    @torch.no_grad()
    def _test(self, live: LoadedNet, predictor: Predictor, data: Dataset, indices: Tensor) -> Tested:
        live.net.eval()
        parts = []
        for part in torch.split(indices, self.batch) if len(indices) else ():
            parts.append(Tested.of(predictor.logits(live.net, data.gather(part)), data.y[part], self.aims))
        return Tested.sum(parts)
