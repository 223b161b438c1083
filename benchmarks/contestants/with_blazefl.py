"""BlazeFL, FedAvg in its process pool: `python with_blazefl.py WORKLOAD ROUNDS`, one JSON object on standard output.

Given its best here: two processes, forked, so that they find samples and modules in memory; batches by index instead of
one sample after another; its own FedAvg, no evaluation.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

BEGAN = time.time()
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import functools
import json
import tempfile

import torch
import torch.multiprocessing as mp
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgProcessPoolClientTrainer
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from contestants.workloads import LR, WORKLOADS, tensors
from fedloom.data.scenario import Scenario


@functools.cache
def scenario_of(workload: str) -> Scenario:
    return WORKLOADS[workload].scenario()


@functools.cache
def dealt(workload: str) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Made before the pool forks: its processes have it."""
    return tensors(scenario_of(workload))


class Selector:
    def select_model(self, model_name: str) -> nn.Module:
        return WORKLOADS[model_name].net(scenario_of(model_name))


class Dealt:
    """What goes to a process with every client: the workload's name alone."""

    def __init__(self, workload: str) -> None:
        self.workload = workload

    def get_dataset(self, type_, cid):
        x, y, clients = dealt(self.workload)
        return TensorDataset(x[clients[cid]], y[clients[cid]])

    def set_dataset(self, type_, cid, dataset) -> None:
        pass

    def get_dataloader(self, type_, cid, batch_size, generator):
        dataset = self.get_dataset(type_, cid)
        batches = BatchSampler(RandomSampler(dataset, generator=generator), batch_size, drop_last=False)
        return DataLoader(dataset, sampler=batches, batch_size=None)


class Quiet(FedAvgProcessPoolClientTrainer):
    """Without a progress bar."""

    def progress_fn(self, items):
        return items


def stepped(name: str) -> None:
    """One step: torch imports much with the first, which each of a round's new processes would pay again."""
    net, (x, y, _) = Selector().select_model(name), dealt(name)
    optimizer = torch.optim.SGD(net.parameters(), lr=LR)
    nn.functional.cross_entropy(net(x[:2]), y[:2]).backward()
    optimizer.step()


def main(name: str, rounds: int) -> None:
    torch.set_num_threads(1)
    mp.set_start_method("fork", force=True)
    workload, dataset = WORKLOADS[name], Dealt(name)
    stepped(name)
    clients = len(dealt(name)[2])
    sampled, sizes = workload.sampled / clients, [len(indices) for indices in dealt(name)[2]]
    handler = FedAvgBaseServerHandler(Selector(), name, dataset, rounds, clients, sampled, "cpu", workload.batch, 0)
    seconds, samples, first = [], [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        trainer = Quiet(
            Selector(), name, Path(folder), dataset, "cpu", clients, 1, workload.batch, LR, 0, num_parallels=2
        )
        while not handler.is_stopped():
            began = time.time()
            chosen = handler.sample_clients()
            trainer.local_process(handler.downlink_package(), chosen)
            for package in trainer.uplink_package():
                handler.load(package)
            seconds.append(time.time() - began)
            samples.append(sum(sizes[client] for client in chosen))
            first = first or time.time() - BEGAN
        trainer.shutdown()
    counts = {"rounds": seconds, "samples": samples}
    print(json.dumps(counts | {"to_first_round": first, "total": time.time() - BEGAN}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
