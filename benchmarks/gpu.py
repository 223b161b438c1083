"""fedloom on one GPU: `python benchmarks/gpu.py [--device cuda]`. Not part of `make bench`; data are noise.

  fedsc   FedSC at its paper's CIFAR-10 setting: ResNet-10, 10 clients (Dirichlet 0.5), 10 epochs of batches of 64
  lenet5  FedAvg, LeNet5, 20 clients of 320 samples, batches of 32: serial and batched beside a plain PyTorch loop
  busy    the share of a round of each in which the GPU computes, by torch's profiler

--small: a few samples, to see that it runs where no GPU is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from contestants import with_fedloom
from contestants.workloads import LR, Workload
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.storage.environment import describe_environment

CLASSES, TURNS = 10, 5
WARM_UP_SECONDS = 8.0
ENGINES = ("serial", "batched")


def workload(method: str, model: str, clients: int, *, epochs: int, batch: int) -> Workload:
    """SGD with momentum; all clients take part."""
    return Workload(
        f"{method}, {model}",
        model,
        clients,
        batch,
        {},
        method=method,
        epochs=epochs,
        momentum=0.9,
        weight_decay=1e-5,
    )


def scenario(sizes: list[int]) -> Scenario:
    """Clients of these sizes, images of noise 32 x 32 x 3."""
    rng, total = np.random.default_rng(0), sum(sizes)
    x = torch.from_numpy(rng.integers(0, 256, (total, 3, 32, 32), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, CLASSES, total))
    data = Dataset(x, y, tuple(map(str, range(CLASSES))), torch.full((3,), 127.0), torch.full((3,), 64.0))
    starts = np.cumsum([0, *sizes])
    train = Views.from_lists([np.arange(a, b) for a, b in itertools.pairwise(starts)])
    none = Views.from_lists([np.arange(0)] * len(sizes))
    return Scenario("noise", data, data.head(10), train, none, train)


def plain_loop(work: Workload, scenario: Scenario, device: torch.device) -> Callable[[], None]:
    """What a researcher writes, data resident on the device."""
    sizes = [len(scenario.train[client]) for client in range(scenario.clients)]
    x = scenario.train_set.gather(torch.arange(sum(sizes))).to(device)
    y = scenario.train_set.y.to(device)
    net = work.net(scenario).to(device)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    criterion = nn.CrossEntropyLoss()

    def one_round() -> None:
        mean: dict[str, torch.Tensor] = {}
        for client, size in enumerate(sizes):
            net.load_state_dict(weights)
            optimizer = torch.optim.SGD(net.parameters(), LR, work.momentum, weight_decay=work.weight_decay)
            order = scenario.train.tensor(client)[torch.randperm(size)].to(device)
            for part in order.split(work.batch):
                optimizer.zero_grad()
                criterion(net(x[part]), y[part]).backward()
                optimizer.step()
            for name, value in net.state_dict().items():
                mean[name] = mean.get(name, 0) + value.double() * (size / sum(sizes))
        weights.update({name: mean[name].to(value.dtype) for name, value in weights.items()})

    return one_round


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def busy(work: Callable[[], Any], device: torch.device) -> float | None:
    """The share of a call in which kernels run: one or several, they may run side by side."""
    if device.type != "cuda":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        duration = seconds(work, device)
    spans = [event.time_range for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return union([(span.start, span.end) for span in spans]) / 1e6 / duration


def union(spans: Sequence[tuple[float, float]]) -> float:
    """How long at least one of some spans lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    drawn = np.random.default_rng(0).dirichlet([0.5] * 10) * (100 if arguments.small else 50_000)
    paper, lenet = [max(2, int(size)) for size in drawn], [64 if arguments.small else 320] * 20
    warm_up = 0.0 if arguments.small else WARM_UP_SECONDS
    figures: dict[str, Any] = {"environment": describe_environment(), "device": str(device)}
    job = workload("fedsc", "resnet10", len(paper), epochs=1 if arguments.small else 10, batch=64)
    for half, engine in itertools.product((False, True), ENGINES):
        name = f"fedsc, resnet10, {engine}, {'bfloat16' if half else 'float32'}"
        try:
            federation = with_fedloom.federation(job, scenario(paper), name=engine, device=str(device), bfloat16=half)
        except with_fedloom.NOT_THERE as error:
            print(name, "is not there:", error, flush=True)
            continue
        work = with_fedloom.rounds(with_fedloom.warmed(federation, warm_up))
        times = [seconds(work, device) for _ in range(3)]
        figures[name] = {
            "round_s": median(times),
            "100 rounds, minutes": median(times) * 100 / 60,
            "busy": busy(work, device),
        }
        print(name, json.dumps(figures[name]), flush=True)
        with_fedloom.closed(federation)
    job, dealt = workload("fedavg", "lenet5", len(lenet), epochs=1, batch=32), scenario(lenet)
    contestants: dict[str, Callable[[], Any]] = {"plain loop": plain_loop(job, dealt, device)}
    for engine in ENGINES:
        try:
            federation = with_fedloom.federation(job, dealt, name=engine, device=str(device))
        except with_fedloom.NOT_THERE as error:
            print(f"lenet5, {engine} is not there:", error, flush=True)
            continue
        contestants[engine] = with_fedloom.rounds(with_fedloom.warmed(federation, warm_up))
    for work in contestants.values():
        for _ in range(3):
            seconds(work, device)
    turns = [{name: seconds(work, device) for name, work in contestants.items()} for _ in range(TURNS)]
    for name, work in contestants.items():
        ratios = sorted(turn["plain loop"] / turn[name] for turn in turns)
        figures[f"lenet5, {name}"] = {
            "round_s": median(turn[name] for turn in turns),
            "plain loop / it": median(ratios),
            "busy": busy(work, device),
        }
        print(name, json.dumps(figures[f"lenet5, {name}"]), flush=True)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
