"""The four evaluation protocols: which model is tested, on whose data. None of them is "the" accuracy.

| protocol | model | data | reported accuracy |
|---|---|---|---|
| global/global | the server's | the whole global test set | correct / total |
| global/local | the server's | each client's own test view | unweighted mean over clients |
| personal/global | each client's | the whole global test set | unweighted mean over clients |
| personal/local | each client's | each client's own test view | unweighted mean over clients |

A fifth, `few-shot` (`evaluation/fewshot.py`), tests the server's features on classes that may be new.

All N clients are tested, sampled or not, after aggregation; a client without samples in the split is left out of the
mean, and `clients` says how many were in it. `accuracy_pooled` is the same with every sample weighing the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.evaluation.metrics import Tested
from fedloom.methods.phases import Predictor
from fedloom.nets.net import Net

PROTOCOLS = ("global/global", "global/local", "personal/global", "personal/local")
Load = Callable[[Tree], None]


@dataclass(frozen=True, slots=True)
class Scores:
    """Results on one split ("test" or "val"): of all, and of each client where the protocol tests clients."""

    split: str
    pooled: Tested
    clients: dict[int, Tested]

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
        return values


class Evaluator:
    """Tests predictors on a scenario with one live net; `batch` samples at a time.

    `splits` are those that can be tested. Raises `ConfigError` if the test set has other classes than were trained.
    """

    def __init__(self, net: Net, load: Load, scenario: Scenario, protocol: str, *, batch: int) -> None:
        if scenario.test_set.classes != scenario.train_set.classes:
            raise ConfigError(
                f"evaluation.protocol = '{protocol}': the test set of {scenario.name} has other classes than its "
                "training set; use few-shot"
            )
        self.net, self.load, self.scenario, self.batch = net, load, scenario, batch
        self.kind, self.where = protocol.split("/")
        self.splits = ("test", "val") if len(scenario.val.order) else ("test",)

    def scores(self, split: str, predictors: Iterator[tuple[int, dict[str, Predictor]]]) -> Scores:
        """Test on "test" or "val". `predictors` yields (client, its predictors); client -1 is the server.

        Raises `ConfigError` if the method offers no predictor of the protocol's kind.
        """
        data = self.scenario.test_set if split == "test" else self.scenario.train_set
        views = self.scenario.test if split == "test" else self.scenario.val
        everything = torch.arange(len(data)) if split == "test" else torch.from_numpy(views.order)
        clients: dict[int, Tested] = {}
        for client, offered in predictors:
            predictor = self.pick(offered)
            self.load(predictor.tree)
            if self.where == "global":
                result = self._test(predictor, data, everything)
                if client < 0:
                    return Scores(split, result, {})
                clients[client] = result
            else:
                held = range(self.scenario.clients) if client < 0 else (client,)
                for k in held:
                    clients[k] = self._test(predictor, data, views.tensor(k))
        return Scores(split, Tested.sum(clients.values()), clients)

    def pick(self, offered: dict[str, Predictor]) -> Predictor:
        """The predictor of the protocol's kind. Raises `ConfigError` if it is not among those offered."""
        if self.kind not in offered:
            raise ConfigError(
                f"evaluation.protocol = '{self.kind}/{self.where}': the method has no {self.kind} model; "
                f"use {'personal' if self.kind == 'global' else 'global'}/global or "
                f"{'personal' if self.kind == 'global' else 'global'}/local"
            )
        return offered[self.kind]

    @torch.no_grad()
    def _test(self, predictor: Predictor, data: Dataset, indices: Tensor) -> Tested:
        self.net.eval()
        parts = []
        for part in torch.split(indices, self.batch) if len(indices) else ():
            parts.append(Tested.of(predictor.logits(self.net, data.gather(part)), data.y[part]))
        return Tested.sum(parts)
