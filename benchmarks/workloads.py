"""The workloads of all contestants: the same samples, clients, net, batches and step size.

With --smoke among the arguments of this command, or of the one that started it, everything is tiny.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.nets import build
from fedloom.nets.net import Net
from fedloom.runs.config.scenario_config import ScenarioConfig

LR = 0.01
_SHAPE = (3, 32, 32)
SMOKE = "--smoke" in sys.argv or "FEDLOOM_BENCH_SMOKE" in os.environ
if SMOKE:
    os.environ["FEDLOOM_BENCH_SMOKE"] = "1"  # for the processes that start from here


@dataclass(frozen=True)
class Workload:
    """SGD, FedAvg, `sampled` clients a round, averaged by samples. `source` as in a config."""

    name: str
    model: str
    sampled: int
    batch: int
    source: dict[str, Any]
    method: str = "fedavg"
    epochs: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def scenario(self) -> Scenario:
        if self.source.get("source") == "random":
            return _random(**{key: self.source[key] for key in ("sizes", "shape", "tested") if key in self.source})
        return ScenarioConfig.model_validate(self.source).build(0)

    def net(self, scenario: Scenario) -> Net:
        if self.model == "weights":
            return Weights(self.source["parameters"])
        shape, classes = scenario.train_set.input_shape, scenario.num_classes
        return build(self.model, input_shape=shape, num_classes=classes, streams=Streams(0))

    def tiny(self) -> Workload:
        """Two clients of few samples a round, noise in place of Fashion-MNIST, a small net in place of a large one."""
        model, shape = self.model, self.source.get("shape", _SHAPE)
        if model == "resnet18-cifar":
            model, shape = "digits-cnn", (3, 8, 8)
        source = {"source": "random", "sizes": [8] * 10, "shape": shape}
        return replace(self, source=source, model=model, sampled=2, batch=4)


class Weights(Net):
    """A net that is nothing but `size` parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.randn(size - 2))
        self.head = nn.Linear(1, 1)


def _no_op(size: int) -> Workload:
    return Workload(
        f"no-op {size}", "weights", 20, 1, {"source": "random", "sizes": [1] * 20, "parameters": size}, method="no-op"
    )


def _residual(model: str) -> Workload:
    return Workload(model, model, 4, 32, {"source": "random", "sizes": [64] * 4})


def _on_gpu(name: str, model: str, batch: int, shape: Sequence[int], sizes: Sequence[int]) -> Workload:
    """All clients take part in every round, and SGD has momentum."""
    source = {"source": "random", "sizes": list(sizes), "shape": shape, "tested": 10_000}
    return Workload(name, model, len(sizes), batch, source, momentum=0.9, weight_decay=1e-5)


def _unequal(alpha: float) -> list[int]:
    """Sizes of 100 clients with 60,000 samples, at least two each, by a Dirichlet distribution."""
    return [max(2, int(share * 60_000)) for share in np.random.default_rng(0).dirichlet([alpha] * 100)]


_FASHION = {"source": "fashion-mnist", "val": 0.0}
_SMALL = {**_FASHION, "partition": "iid", "clients": 1000}  # 60 samples each
_SIZES = {**_SMALL, "partition": "dirichlet", "alpha": 0.3, "min_samples": 0}  # 4 to 219 samples, 52 in the middle
WORKLOADS = {
    w.name: w
    for w in (
        Workload("cnn", "lenet5", 50, 16, {"source": "random", "sizes": [160] * 50}),
        Workload("fashion", "lenet5-bn", 10, 32, {**_FASHION, "partition": "dirichlet", "alpha": 0.3, "clients": 100}),
        Workload("mlp", "mlp-128", 100, 10, _SMALL),
        Workload("mlp-sizes", "mlp-128", 100, 10, _SIZES),
        Workload("logistic", "logistic", 100, 10, _SMALL),
        Workload("logistic-sizes", "logistic", 100, 10, _SIZES),
        _residual("resnet8"),
        _residual("resnet10"),
    )
}
ON_GPU = {
    w.name: w
    for w in (
        _on_gpu("lenet", "lenet5-bn", 32, (1, 28, 28), _unequal(0.5)),
        _on_gpu("mlp", "mlp-128", 10, (1, 28, 28), _unequal(3.0)),
        _on_gpu("resnet", "resnet18-cifar", 64, _SHAPE, [5000] * 10),
    )
}
if SMOKE:
    WORKLOADS, ON_GPU = ({w.name: w.tiny() for w in works.values()} for works in (WORKLOADS, ON_GPU))
NO_OP = {w.name: w for w in (_no_op(10), _no_op(500_000))}


def tensors(scenario: Scenario) -> tuple[Tensor, Tensor, list[Tensor]]:
    """All training samples, normalised, their labels, and each client's indices: ready for a TensorDataset."""
    data = scenario.train_set
    x = data.gather(torch.arange(len(data)))
    return x, data.y, [scenario.train.tensor(client) for client in range(scenario.clients)]


def with_clients(scenario: Scenario, clients: int, samples: int = 60) -> Scenario:
    """The same data dealt to any number of clients, of `samples` each; samples repeat if there are not enough."""
    order = np.random.default_rng(0).permutation(len(scenario.train_set))
    dealt = Views(np.resize(order, clients * samples), np.arange(clients + 1, dtype=np.int64) * samples)
    tested = np.random.default_rng(1).permutation(len(scenario.test_set))
    tests = Views(np.resize(tested, clients * 10), np.arange(clients + 1, dtype=np.int64) * 10)
    return replace(scenario, train=dealt, val=Views.from_lists([np.arange(0)] * clients), test=tests)


def _random(sizes: Sequence[int], shape: Sequence[int] = _SHAPE, tested: int = 10) -> Scenario:
    """Images of noise: clients of these sizes, and `tested` test images, the first ten of which every client tests."""
    rng, total = np.random.default_rng(0), sum(sizes) + tested
    x = torch.from_numpy(rng.integers(0, 256, (total, *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, total))
    mean, std = (torch.full((shape[0],), value) for value in (127.0, 64.0))
    data = Dataset(x, y, tuple(map(str, range(10))), mean, std)
    train = Views.from_lists(list(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])))
    no_samples, tests = (Views.from_lists([np.arange(count)] * len(sizes)) for count in (0, min(10, tested)))
    test_set = data.take(torch.arange(sum(sizes), total))
    return Scenario("random", data.head(sum(sizes)), test_set, train, no_samples, tests)
