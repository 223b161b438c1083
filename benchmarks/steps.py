"""What a method's loss adds to a local step: `python benchmarks/steps.py`.

LeNet5 on 28x28 images, batch 64, one thread, 10 x 10 prototypes: milliseconds a step in the worker (batch gathered,
gradients, update; statistics passes left out), all methods in turn, many turns, quantiles and their ratios to
FedAvg's. Then FedSC's loss alone at 10 clients x 100 classes x 512 dimensions.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.data.dataset import Dataset
from fedloom.engine import LocalTraining, Worker
from fedloom.engine.client import Job
from fedloom.methods import METHODS, Method, fedsc
from fedloom.methods.method import ClientContext, ServerContext, Task
from fedloom.methods.phases import Batch, OptimizerSpec, Train
from fedloom.nets import build
from fedloom.nets.blueprint import prepared
from fedloom.study.environment import describe

BATCH, CLASSES, HOLDERS, TURNS, STEPS = 64, 10, 10, 100, 8
_QUANTILES = (0.1, 0.25, 0.5)
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


def without_passes(kind: type[Method]) -> Method:
    """The method without its statistics passes, and without uploads."""

    class Steps(kind):  # type: ignore[misc, valid-type]
        def phases(self, start: Any, ctx: ClientContext) -> list[Any]:
            return [phase for phase in super().phases(start, ctx) if isinstance(phase, Train)]

        def end(self, work: Any, state: Record, ctx: ClientContext) -> tuple[Record, Record]:
            return {}, {}

    return Steps(kind.configured("sound", {}).options)


def steps_of(names: Iterable[str]) -> dict[str, Callable[[], None]]:
    """Functions that make STEPS local steps, all in the same memory: where weights lie changes times by 10 %."""
    torch.manual_seed(0)
    streams, samples = Streams(0), BATCH * STEPS
    net = build("lenet5", input_shape=(1, 28, 28), num_classes=CLASSES, streams=streams)
    prepared(net, head_bias=False, nets=())  # as FedDW needs it
    y = torch.arange(samples) % CLASSES
    data = Dataset(torch.randn(samples, 1, 28, 28), y, tuple(str(c) for c in range(CLASSES)))
    task = Task.of(net, clients=HOLDERS, num_classes=CLASSES, rounds=9, local_epochs=1, streams=streams)
    worker = Worker(Method(), [net], data, LocalTraining(BATCH, OptimizerSpec("sgd", 0.01, 0.9)))
    ctx = ClientContext(task, 5, 0, samples, torch.bincount(y, minlength=CLASSES))

    def steps(name: str) -> Callable[[], None]:
        method = without_passes(METHODS.get(name))
        job = Job(ctx, payload_of(name, method, task), {}, torch.arange(samples))

        def work() -> None:
            worker.method = method
            worker.run(job)

        return work

    return {name: steps(name) for name in names}


def milliseconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def measure_steps() -> dict[str, Any]:
    steps = steps_of(BOUNDS)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name, work in steps.items():
            taken[name].append(milliseconds(work) / STEPS)
    found = {}
    for name, values in taken.items():
        quantiles, reference = np.quantile(values, _QUANTILES), np.quantile(taken["fedavg"], _QUANTILES)
        found[name] = {
            "ms": [round(float(ms), 3) for ms in quantiles],
            "ratio": [round(float(ratio), 3) for ratio in quantiles / reference],
            "bound": BOUNDS[name],
        }
    return found


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
    consts = method.begin(sent, {}, ctx).consts
    z, y = torch.randn(BATCH, width, requires_grad=True), torch.randint(0, classes, (BATCH,))
    batch = Batch(z, y)

    def work() -> None:
        options = method.options
        loss = fedsc.rpcl(z, batch, consts, options) + fedsc.cpdr(z, batch, consts, options.cpdr)
        torch.autograd.grad(loss, z)

    taken = sorted(milliseconds(work) for _ in range(TURNS * 2))
    return {"ms": round(taken[len(taken) // 2], 3), "ms_tenth": round(taken[len(taken) // 10], 3), "bound_ms": 3.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the results, with hardware and versions, to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {"steps": measure_steps(), "fedsc_wide": measure_wide(), "environment": describe()}
    for name, row in found["steps"].items():
        ms, ratio = (", ".join(f"{value:.3f}" for value in row[key]) for key in ("ms", "ratio"))
        print(f"{name:8s} {ms} ms a step   {ratio} x FedAvg   (tenth, quarter, median; bound {row['bound']})")
    wide = found["fedsc_wide"]
    told = f"{wide['ms']:.2f} ms beyond the net ({wide['ms_tenth']:.2f} at the tenth), bound 3 ms"
    print(f"fedsc, 10 x 100 x 512: {told}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
