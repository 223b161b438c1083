"""The workloads of all contestants: the same samples, clients, net, batches and step size.

With --smoke among the arguments of this command, or of the one that started it, everything is tiny.
"""

from __future__ import annotations

import os
import sys
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
            return _random(self.source["clients"], self.source["samples"])
        return ScenarioConfig.model_validate(self.source).build(0)

    def net(self, scenario: Scenario) -> Net:
        if self.model == "weights":
            return Weights(self.source["parameters"])
        shape, classes = scenario.train_set.input_shape, scenario.num_classes
        return build(self.model, input_shape=shape, num_classes=classes, streams=Streams(0))

    def tiny(self) -> Workload:
        """Two clients of few samples a round, noise in place of Fashion-MNIST."""
        return replace(self, source={"source": "random", "clients": 10, "samples": 8}, sampled=2, batch=4)


class Weights(Net):
    """A net that is nothing but `size` parameters."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.randn(size - 2))
        self.head = nn.Linear(1, 1)


def _no_op(size: int) -> Workload:
    return Workload(
        f"no-op {size}",
        "weights",
        20,
        1,
        {"source": "random", "clients": 20, "samples": 1, "parameters": size},
        method="no-op",
    )


def _residual(model: str) -> Workload:
    return Workload(model, model, 4, 32, {"source": "random", "clients": 4, "samples": 64})


_FASHION = {"source": "fashion-mnist", "val": 0.0}
_SMALL = {**_FASHION, "partition": "iid", "clients": 1000}  # 60 samples each
_SIZES = {**_SMALL, "partition": "dirichlet", "alpha": 0.3, "min_samples": 0}  # 4 to 219 samples, 52 in the middle
WORKLOADS = {
    w.name: w
    for w in (
        Workload("cnn", "lenet5", 50, 16, {"source": "random", "clients": 50, "samples": 160}),
        Workload("fashion", "lenet5-bn", 10, 32, {**_FASHION, "partition": "dirichlet", "alpha": 0.3, "clients": 100}),
        Workload("mlp", "mlp-128", 100, 10, _SMALL),
        Workload("mlp-sizes", "mlp-128", 100, 10, _SIZES),
        Workload("logistic", "logistic", 100, 10, _SMALL),
        Workload("logistic-sizes", "logistic", 100, 10, _SIZES),
        _residual("resnet8"),
        _residual("resnet10"),
    )
}
if SMOKE:
    WORKLOADS = {name: workload.tiny() for name, workload in WORKLOADS.items()}
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


def _random(clients: int, samples: int) -> Scenario:
    """Images of noise, 32 x 32 x 3."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (clients * samples, 3, 32, 32), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, clients * samples))
    data = Dataset(x, y, tuple(map(str, range(10))), torch.full((3,), 127.0), torch.full((3,), 64.0))
    train = Views.from_lists(list(np.arange(clients * samples).reshape(clients, samples)))
    no_samples, tested = (Views.from_lists([np.arange(count)] * clients) for count in (0, 10))
    return Scenario("random", data, data.head(10), train, no_samples, tested)
