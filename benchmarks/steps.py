"""What a method's loss adds to a local step: `python benchmarks/steps.py`.

LeNet5 on 28x28 images, batch 64, one thread, 10 x 10 prototypes: a step in the worker (batch gathered, gradients,
update), all methods in turn, step by step, and the median of each method's ratio to FedAvg's step of the same turn,
with a 95 % bootstrap interval. Then FedSC's loss alone at 10 clients x 100 classes x 512 dimensions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

from contestants import with_fedloom
from contestants.workloads import SMOKE
from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.data.dataset import Dataset
from fedloom.methods import METHODS, Method, fedsc
from fedloom.methods.contract.method import ClientContext, ServerContext, Task
from fedloom.methods.contract.phases import Batch, Train
from fedloom.nets import build
from fedloom.nets.blueprint import prepare_net
from fedloom.runs.storage.environment import describe_environment

BATCH, CLASSES, HOLDERS = 64, 10, 10
TURNS, WARM_UP = (2, 2) if SMOKE else (1000, 20)
BOUNDS = {"fedavg": 1.0, "feddw": 1.05, "fedskc": 1.10, "fedsc": 1.15}


def table(*shape: int) -> ClassTable:
    return ClassTable(torch.randn(*shape), torch.ones(shape[:-1], dtype=torch.bool))


def payload_of(name: str, method: Method, task: Task) -> Record:
    """What the server sends in a later round, with random tables."""
    sent = dict(method.down(method.server_init(ServerContext(task, 0)), 0, ServerContext(task, 5)))
    if name == "fedsc":
        sent |= {
            "relational": table(HOLDERS, CLASSES, task.feature_dim),
            "consistent": table(CLASSES, task.feature_dim),
        }
    if name == "fedskc":
        sent["knowledge"] = table(CLASSES, CLASSES)
    return sent


def steps_of(names: Iterable[str], *, recorded: bool) -> dict[str, Callable[[], None]]:
    """Functions that make one local step each; recorded: as in a long run, in which steps are recorded."""
    torch.manual_seed(0)
    streams, samples = Streams(0), BATCH * 8
    net = build("lenet5", input_shape=(1, 28, 28), num_classes=CLASSES, streams=streams)
    prepare_net(net, head_bias=False, nets=())  # as FedDW needs it
    y = torch.arange(samples) % CLASSES
    data = Dataset(torch.randn(samples, 1, 28, 28), y, tuple(str(c) for c in range(CLASSES)))
    task = Task.of(net, clients=HOLDERS, num_classes=CLASSES, rounds=9, local_epochs=1, streams=streams)
    ctx = ClientContext(task, 5, 0, samples, torch.bincount(y, minlength=CLASSES))
    parts = itertools.cycle(torch.randperm(samples).split(BATCH))
    methods = {name: METHODS.get(name).configured("sound", {}) for name in names}
    prepared = {name: (method, payload_of(name, method, task), ctx) for name, method in methods.items()}
    return with_fedloom.local_steps(net, data, BATCH, prepared, parts, recorded=recorded)


def milliseconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def measure_steps(*, recorded: bool) -> dict[str, Any]:
    """Every method makes one step in every turn, in an order drawn anew: slow moments of the machine meet all alike."""
    steps, rng = steps_of(BOUNDS, recorded=recorded), np.random.default_rng(0)
    times = np.zeros((TURNS, len(steps)))
    names = list(steps)
    for turn in range(-WARM_UP, TURNS):
        for column in rng.permutation(len(names)):
            spent = milliseconds(steps[names[column]])
            if turn >= 0:
                times[turn, column] = spent
    ratios = times / times[:, [names.index("fedavg")]]
    drawn = rng.integers(0, TURNS, (1000, TURNS))
    figures = {}
    for column, name in enumerate(names):
        medians = np.median(ratios[drawn, column], axis=1)
        figures[name] = {
            "ms": round(float(np.median(times[:, column])), 3),
            "ratio": round(float(np.median(ratios[:, column])), 3),
            "ratio_95": [round(float(q), 3) for q in np.quantile(medians, (0.025, 0.975))],
            "bound": BOUNDS[name],
        }
    return figures


def measure_wide() -> dict[str, Any]:
    """FedSC's RPCL and CPDR with their gradient by the features: 10 clients x 100 classes x 512 dimensions."""
    holders, classes, width = 10, 100, 512
    method = METHODS.get("fedsc").configured("sound", {})
    net = build("mlp", input_shape=(width,), num_classes=classes, streams=Streams(0), hidden=[width])
    task = Task.of(net, clients=holders, num_classes=classes, rounds=9, local_epochs=1, streams=Streams(0))
    sent: Record = {
        "model": task.init,
        "relational": table(holders, classes, width),
        "consistent": table(classes, width),
    }
    ctx = ClientContext(task, 5, 0, BATCH, torch.ones(classes, dtype=torch.int64))
    start = method.begin(sent, {}, ctx)
    phase = next(phase for phase in method.phases(start, ctx) if isinstance(phase, Train))
    data = Dataset(torch.randn(BATCH, width), torch.arange(BATCH) % classes, tuple(map(str, range(classes))))
    consts = {**start.consts, **with_fedloom.statistics_of(net, phase, start.consts, data, classes)}
    z, y = torch.randn(BATCH, width, requires_grad=True), torch.randint(0, classes, (BATCH,))
    batch = Batch(z, y)

    def work() -> None:
        options = method.options
        loss = fedsc.rpcl(z, batch, consts, options) + fedsc.cpdr(z, batch, consts, options.cpdr)
        torch.autograd.grad(loss, z)

    times = sorted(milliseconds(work) for _ in range(TURNS))
    return {"ms": round(times[len(times) // 2], 3), "ms_tenth": round(times[len(times) // 10], 3), "bound_ms": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the results, with hardware and versions, to this file")
    parser.add_argument("--smoke", action="store_true", help="a few steps, to see that it runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = {
        "steps": measure_steps(recorded=False),
        "recorded steps": measure_steps(recorded=True),
        "fedsc_wide": measure_wide(),
        "turns": TURNS,
        "environment": describe_environment(),
    }
    for kind in ("steps", "recorded steps"):
        print(kind)
        for name, row in figures[kind].items():
            low, high = row["ratio_95"]
            text = f"{row['ratio']:.3f} x FedAvg ({low:.3f} .. {high:.3f}), bound {row['bound']}"
            print(f"  {name:8s} {row['ms']:7.3f} ms a step   {text}")
    wide = figures["fedsc_wide"]
    text = f"{wide['ms']:.2f} ms beyond the net ({wide['ms_tenth']:.2f} at the tenth), bound 3 ms"
    print(f"fedsc, 10 x 100 x 512: {text}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
