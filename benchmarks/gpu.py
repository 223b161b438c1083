"""Speed of fedloom on one GPU: a step, a round against plain loops, copies, tests, two rounds of FedSC.

    python -m benchmarks gpu [--device cuda] [--only step,round]

  step        a local step of FedSC's net, ResNet-10, batch 64: milliseconds, kernels, and the shares of its time in
              which kernels run and in which the CPU launches them
  round       a round of FedAvg, ResNet-10, 10 clients of 640 samples: serial and batched, float32 and bfloat16,
              against a plain loop and one in channels last under autocast
  copies      weights of ResNet-10 to the device and back, and an augmented batch
  evaluation  tests of 10,000 images
  fedsc       two rounds of FedSC's CIFAR-10 setting from start to end: 5 of 10 clients, 10 epochs, tests, augmentation

Images are noise 32 x 32 x 3. Every part is kept when it ends, and parts that the results have of the same device are
not measured again unless --fresh is given, so an interrupted run can continue. No part begins after --minutes.
--smoke: a few samples, to see that it runs where no GPU is (with --device cpu).
"""

import argparse
import contextlib
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fedloom as fl
from benchmarks import federations
from benchmarks.data import read_results, write_results
from benchmarks.turns import Figures, summary
from benchmarks.workloads import LR, SMOKE, Workload
from fedloom.data.augment import Augmentation
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.nets.loaded_net import LoadedNet
from fedloom.runs.storage.data_record import describe_environment

MODEL, BATCH = ("lenet5", 4) if SMOKE else ("resnet10", 64)
SAMPLES = 8 if SMOKE else 640  # of a client
CLIENTS = 2 if SMOKE else 10
TESTED = 16 if SMOKE else 10_000
TRAINED = 80 if SMOKE else 50_000  # of FedSC
TURNS = 1 if SMOKE else 5
CLASSES = 10
LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaLaunchKernelExC")


def scenario(sizes: Sequence[int], tested: int = 10) -> Scenario:
    """Clients of these sizes, and `tested` test images."""
    rng, total = np.random.default_rng(0), sum(sizes) + tested
    x = torch.from_numpy(rng.integers(0, 256, (total, 3, 32, 32), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, CLASSES, total))
    data = Dataset(x, y, tuple(map(str, range(CLASSES))), torch.full((3,), 127.0), torch.full((3,), 64.0))
    starts = np.cumsum([0, *sizes])
    train = Views.from_lists([np.arange(a, b) for a, b in itertools.pairwise(starts)])
    nothing = Views.from_lists([np.arange(0)] * len(sizes))
    tests = Views.from_lists(list(np.array_split(np.arange(tested), len(sizes))))
    test_set = data.take(torch.arange(sum(sizes), total))
    return Scenario("noise", data.head(sum(sizes)), test_set, train, nothing, tests)


def workload(method: str, clients: int) -> Workload:
    """SGD with momentum; all clients take part."""
    return Workload(method, MODEL, clients, BATCH, {}, method=method, momentum=0.9, weight_decay=1e-5)


def plain_loop(work: Workload, scenario: Scenario, device: torch.device, *, autocast: bool) -> Callable[[], None]:
    """A round as a researcher writes it, data on the device. autocast: channels last, and in bfloat16."""
    sizes = [len(scenario.train[client]) for client in range(scenario.clients)]
    memory_format = torch.channels_last if autocast else torch.contiguous_format
    x = scenario.train_set.gather(torch.arange(sum(sizes))).to(device, memory_format=memory_format)
    y = scenario.train_set.y.to(device)
    net: nn.Module = work.net(scenario).to(device, memory_format=memory_format)
    weights = {name: value.clone() for name, value in net.state_dict().items()}
    criterion = nn.CrossEntropyLoss()

    def one_round() -> None:
        mean: dict[str, Tensor] = {}
        for client, size in enumerate(sizes):
            net.load_state_dict(weights)
            optimizer = torch.optim.SGD(net.parameters(), LR, work.momentum, weight_decay=work.weight_decay)
            order = scenario.train.tensor(client)[torch.randperm(size)].to(device)
            for indices in order.split(work.batch):
                optimizer.zero_grad()
                with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
                    loss = criterion(net(x[indices]), y[indices])
                loss.backward()
                optimizer.step()
            for name, value in net.state_dict().items():
                mean[name] = mean.get(name, 0) + value.double() * (size / sum(sizes))
        weights.update({name: mean[name].to(value.dtype) for name, value in weights.items()})

    return one_round


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of a call, until the device has done what was queued."""
    wait = functools.partial(torch.cuda.synchronize, device) if device.type == "cuda" else lambda: None
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def profiled(work: Callable[[], Any], device: torch.device) -> Figures:
    """Of a call on a GPU: kernels, copies, and the shares of its time of kernels and of launches; else nothing."""
    if device.type != "cuda":
        return {}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        duration = seconds(work, device)
    events = list(profile.events())
    on_device = [event for event in events if event.device_type == torch.autograd.DeviceType.CUDA]
    copies = [event for event in on_device if "Memcpy" in event.name]
    computing = union([(event.time_range.start, event.time_range.end) for event in on_device])
    launched = sum(event.self_cpu_time_total for event in events if event.name in LAUNCHES)
    return {
        "kernels": len(on_device) - len(copies),
        "copies": len(copies),
        "share of kernels": round(computing / 1e6 / duration, 3),
        "share of launches": round(launched / 1e6 / duration, 3),
    }


def union(spans: Sequence[tuple[float, float]]) -> float:
    """How long at least one of some spans lasts."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


@contextlib.contextmanager
def warm_rounds(work: Workload, dealt: Scenario, device: torch.device, **engine: Any) -> Iterator[Callable[[], int]]:
    """Rounds of a federation after some that warm up."""
    federation = federations.federation(work, dealt, device=str(device), **engine)
    try:
        yield federations.rounds(federations.warmed(federation, 0.0 if SMOKE else 3.0))
    finally:
        federations.closed(federation)


def step(device: torch.device) -> Figures:
    figures: Figures = {}
    for half in (False, True):
        with warm_rounds(workload("fedsc", 1), scenario([SAMPLES]), device, name="serial", bfloat16=half) as work:
            times = [seconds(work, device) * 1e3 * BATCH / SAMPLES for _ in range(TURNS)]
            figures["bfloat16" if half else "float32"] = {
                "ms a step": summary(times, 3),
                "a round": profiled(work, device),
            }
    return figures


def one_round(device: torch.device) -> Figures:
    work, dealt = workload("fedavg", CLIENTS), scenario([SAMPLES] * CLIENTS)
    contestants: dict[str, Callable[[], Any]] = {
        "plain loop": plain_loop(work, dealt, device, autocast=False),
        "plain loop, channels last, autocast": plain_loop(work, dealt, device, autocast=True),
    }
    figures: Figures = {"left out": {}}
    with contextlib.ExitStack() as engines:
        for engine, half in itertools.product(("serial", "batched"), (False, True)):
            name = f"{engine}, {'bfloat16' if half else 'float32'}"
            try:
                warm = warm_rounds(work, dealt, device, name=engine, bfloat16=half)
                contestants[name] = engines.enter_context(warm)
            except federations.NOT_THERE as error:
                figures["left out"][name] = federations.reason_of(error)
        for contestant in contestants.values():
            contestant()
        turns = [{name: seconds(call, device) for name, call in contestants.items()} for _ in range(TURNS)]
        for name, call in contestants.items():
            ratio = median(turn["plain loop, channels last, autocast"] / turn[name] for turn in turns)
            times = summary([turn[name] for turn in turns])
            figures[name] = {"seconds": times, "autocast loop / it": round(ratio, 3), **profiled(call, device)}
    return figures


def copies(device: torch.device) -> Figures:
    dealt = scenario([SAMPLES])
    loaded_net = LoadedNet(workload("fedavg", 1).net(dealt).to(device))
    weights, data = loaded_net.weights(), dealt.train_set.to(device)
    rng, indices = np.random.default_rng(0), torch.arange(BATCH, device=device)
    calls: dict[str, Callable[[], Any]] = {
        "weights to the device": lambda: loaded_net.load(weights),
        "weights back": loaded_net.weights,
        "an augmented batch": lambda: Augmentation(crop=4, flip=True).gather(data, indices, rng),
    }
    return {
        name: {"ms": summary([seconds(call, device) * 1e3 for _ in range(4 * TURNS)], 3), **profiled(call, device)}
        for name, call in calls.items()
    }


def run_of(method: str, dealt: Scenario, device: torch.device, rounds: int, **keys: Any) -> Figures:
    """Seconds of a whole run, as its summary has them."""
    numbers = fl.run(
        method,
        scenario=dealt,
        model=MODEL,
        rounds=rounds,
        batch_size=BATCH,
        optimizer={"name": "sgd", "lr": LR, "momentum": 0.9, "weight_decay": 1e-5},
        engine={"name": "serial", "device": str(device)},
        evaluation={"protocol": "global/global", "every": 1},
        **keys,
    ).numbers
    return {"seconds": numbers["seconds"]}


def evaluation(device: torch.device) -> Figures:
    return run_of("fedavg", scenario([BATCH] * 2, TESTED), device, TURNS, local_epochs=1) | {"images": TESTED}


def fedsc(device: torch.device) -> Figures:
    shares = np.random.default_rng(0).dirichlet([0.5] * 10)
    sizes = [max(2, int(share)) for share in shares * TRAINED]
    keys = {"preset": "paper", "participation": 0.5, "local_epochs": 1 if SMOKE else 10}
    return run_of("fedsc", scenario(sizes, TESTED), device, 2, augment={"crop": 4, "flip": True}, **keys)


PARTS = {"step": step, "round": one_round, "copies": copies, "evaluation": evaluation, "fedsc": fedsc}


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, e.g. step,round")
    parser.add_argument("--minutes", type=float, default=6.0, help="no part begins later")
    parser.add_argument("--fresh", action="store_true", help="measure parts again that are there")
    parser.add_argument("--smoke", action="store_true", help="a few samples, to see that it runs; keeps nothing")
    arguments = parser.parse_args(words)
    device, began = torch.device(arguments.device), time.monotonic()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    results = {} if SMOKE or arguments.fresh else read_results("gpu")
    if results.get("device") != name:
        results = {"device": name, "environment": describe_environment()}
    for part in arguments.only.split(","):
        if part in results:
            print(f"{part}: measured before; --fresh measures it again")
            continue
        if time.monotonic() - began > arguments.minutes * 60:
            print(f"{part}: {arguments.minutes:g} minutes are over; the same command continues with it")
            continue
        results[part] = PARTS[part](device)
        print(f"{part}: {json.dumps(results[part], indent=1)}", flush=True)
        if not SMOKE:
            write_results("gpu", results)
