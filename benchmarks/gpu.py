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
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.engine import Federation, LocalTraining, Serial, Worker
from fedloom.engine.stacked import Batched
from fedloom.methods import METHODS
from fedloom.methods.facts import Task
from fedloom.methods.phases import OptimizerSpec
from fedloom.nets import build
from fedloom.nets.blueprint import prepared
from fedloom.study.environment import describe

CLASSES, TURNS = 10, 5


def scenario(sizes: list[int]) -> Scenario:
    """Clients of these sizes, images of noise 32 x 32 x 3."""
    rng, total = np.random.default_rng(0), sum(sizes)
    x = torch.from_numpy(rng.integers(0, 256, (total, 3, 32, 32), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, CLASSES, total))
    data = Dataset(x, y, tuple(map(str, range(CLASSES))), torch.full((3,), 127.0), torch.full((3,), 64.0))
    starts = np.cumsum([0, *sizes])
    train = Views.of([np.arange(a, b) for a, b in itertools.pairwise(starts)])
    none = Views.of([np.arange(0)] * len(sizes))
    return Scenario("noise", data, data.first(10), train, none, train)


def federation(
    name: str, model: str, sizes: list[int], device: torch.device, *, epochs: int, batch: int, engine: str, half: bool
) -> Federation:
    """A federation on the device, its steps recorded as they would be in a long run."""
    method, made = METHODS.get(name).configured("sound", {}), scenario(sizes)
    net = build(model, input_shape=(3, 32, 32), num_classes=CLASSES, streams=Streams(0))
    prepared(net, head_bias=method.spec.head_bias, nets=method.spec.nets)
    task = Task.of(net, clients=len(sizes), num_classes=CLASSES, rounds=100, local_epochs=epochs, streams=Streams(0))
    local = LocalTraining(batch, OptimizerSpec("sgd", 0.01, 0.9, 1e-5))
    worker = Worker(method, [net], made.train_set, local, device, bfloat16=half)
    runs = Batched(worker) if engine == "batched" else Serial(worker)
    runs.hurry(True)
    return Federation(method, runs, [task], made, participation=1.0)


def plain_loop(model: str, sizes: list[int], device: torch.device, batch: int) -> Callable[[], None]:
    """What a researcher writes, data resident on the device."""
    made = scenario(sizes)
    x = made.train_set.gather(torch.arange(sum(sizes))).to(device)
    y = made.train_set.y.to(device)
    net = build(model, input_shape=(3, 32, 32), num_classes=CLASSES, streams=Streams(0)).to(device)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    criterion = nn.CrossEntropyLoss()

    def one_round() -> None:
        mean: dict[str, torch.Tensor] = {}
        for client, size in enumerate(sizes):
            net.load_state_dict(weights)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
            order = made.train.tensor(client)[torch.randperm(size)].to(device)
            for part in order.split(batch):
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
        taken = seconds(work, device)
    spans = [event.time_range for event in profiled.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return union([(span.start, span.end) for span in spans]) / 1e6 / taken


def union(spans: Sequence[tuple[float, float]]) -> float:
    """How long at least one of some spans lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def recordings(made: Federation) -> dict[str, int]:
    """How many steps of stacks were recorded, and how many of them as branches, which were faster than stacked."""
    if not isinstance(made.engine, Batched):
        return {}
    recorder = made.engine.stacks.recorder
    return {"recorded": recorder.programs, "as branches": recorder.others}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    drawn = np.random.default_rng(0).dirichlet([0.5] * 10) * (100 if arguments.small else 50_000)
    paper, lenet = [max(2, int(size)) for size in drawn], [64 if arguments.small else 320] * 20
    epochs = 1 if arguments.small else 10
    found: dict[str, Any] = {"environment": describe(), "device": str(device)}
    for half in (False, True):
        for engine in ("serial", "batched"):
            made = federation("fedsc", "resnet10", paper, device, epochs=epochs, batch=64, engine=engine, half=half)
            taken = [seconds(made.step, device) for _ in range(4)][1:]
            name = f"fedsc, resnet10, {engine}, {'bfloat16' if half else 'float32'}"
            found[name] = {
                "round_s": median(taken),
                "100 rounds, minutes": median(taken) * 100 / 60,
                "busy": busy(made.step, device),
                **recordings(made),
            }
            print(name, json.dumps(found[name]), flush=True)
    contestants: dict[str, Callable[[], Any]] = {"plain loop": plain_loop("lenet5", lenet, device, 32)}
    federations = {
        engine: federation("fedavg", "lenet5", lenet, device, epochs=1, batch=32, engine=engine, half=False)
        for engine in ("serial", "batched")
    }
    contestants |= {engine: made.step for engine, made in federations.items()}
    for work in contestants.values():
        for _ in range(3):
            seconds(work, device)
    turns = [{name: seconds(work, device) for name, work in contestants.items()} for _ in range(TURNS)]
    for name, work in contestants.items():
        ratios = sorted(turn["plain loop"] / turn[name] for turn in turns)
        found[f"lenet5, {name}"] = {
            "round_s": median(turn[name] for turn in turns),
            "plain loop / it": median(ratios),
            "busy": busy(work, device),
            **(recordings(federations[name]) if name in federations else {}),
        }
        print(name, json.dumps(found[f"lenet5, {name}"]), flush=True)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
