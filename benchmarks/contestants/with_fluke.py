"""fluke, FedAvg in one process, as one JSON object: `python -m benchmarks.contestants.with_fluke WORKLOAD ROUNDS`.

Given its best: tensors in memory in its own FastDataLoader, clients that keep no model between rounds, averages
weighted by samples, no evaluation, nothing logged, nothing cached on disk.
"""

import sys
import time

BEGAN = time.time()

import json

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver, ServerObserver

from benchmarks.workloads import LR, WORKLOADS, tensors


class Clock(FederationObserver, ServerObserver):
    """Notes when each round begins and ends, and how many samples it took."""

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.samples: list[int] = []
        self.ended = 0.0

    def start_round(self, round, global_model):
        self.began = time.time()

    def selected_clients(self, round, clients):
        self.samples.append(sum(client.n_examples for client in clients))

    def end_round(self, round):
        self.ended = self.ended or time.time()  # the first
        self.rounds.append(time.time() - self.began)


def main(name: str, rounds: int) -> None:
    torch.set_num_threads(1)
    workload = WORKLOADS[name]
    scenario = workload.scenario()
    x, y, clients = tensors(scenario)
    fluke = FlukeENV()
    fluke.set_seed(0)
    fluke.set_device("cpu")
    fluke.set_inmemory(True)
    fluke.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    loaders = [
        FastDataLoader(
            x[indices],
            y[indices],
            num_labels=scenario.num_classes,
            batch_size=workload.batch,
            shuffle=True,
            skip_singleton=False,
        )
        for indices in clients
    ]
    dealt = DummyDataContainer(loaders, [None] * len(loaders), None, scenario.num_classes)
    training = {
        "batch_size": workload.batch,
        "local_epochs": 1,
        "loss": "CrossEntropyLoss",
        "optimizer": {"name": "SGD", "lr": LR},
        "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1},
        "persistency": False,
    }
    parameters = DDict(client=training, server={"weighted": True, "lr": 1.0}, model=workload.net(scenario))
    algorithm = FedAVG(len(loaders), DataSplitter(dealt), parameters)
    clock = Clock()
    algorithm.set_callbacks(clock)
    algorithm.run(rounds, workload.sampled / len(loaders))
    first = clock.ended - BEGAN
    del clock.samples[len(clock.rounds) :]
    counts = {"rounds": clock.rounds, "samples": clock.samples}
    print()
    print(json.dumps(counts | {"to_first_round": first, "total": time.time() - BEGAN}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
