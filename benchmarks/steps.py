"""Parts of the benchmark `engines` that measure the cost of a method beyond FedAvg.

`steps` measures the cost of a method's loss in a local step of LeNet5 on 28x28 images: batch 64, one thread, 10 x 10
prototypes. All methods take turns step by step (batch gathered, gradients, update). The result is the median ratio to
FedAvg's step of the same turn, with a 95 % bootstrap interval. FedSC's loss is also measured alone, at 10 x 100 x 512.

`operations` compares time with operations: the ratio of a method's round to FedAvg's in time, over that in operations,
for LeNet5 on Fashion-MNIST with 10 of 100 unequal clients per round, on threads. FedAvg runs before and after each
method. A server's own training counts as time alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

import fedloom as fl
from benchmarks import federations
from benchmarks.turns import Figures
from benchmarks.workloads import LR, SMOKE, WORKLOADS
from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.core.tables import ClassTable
from fedloom.data.dataset import Dataset
from fedloom.methods import METHODS, Method, fedsc
from fedloom.methods.contract.method import ClientContext, ServerContext, Task
from fedloom.methods.contract.phases import Batch, Train
from fedloom.nets import build
from fedloom.nets.blueprint import prepare_net

BATCH, CLASSES, HOLDERS = 64, 10, 10
TURNS, WARM_UP = (2, 2) if SMOKE else (1000, 20)
BOUNDS = {"fedavg": 1.0, "feddw": 1.05, "fedskc": 1.10, "fedsc": 1.15}
COSTLY = ("copa", "pfedme", "fedrep", "perfedavg", "fedgen", "fednh", "fedtgp", "scaffold", "feddyn")
OPERATION_TURNS, ROUNDS, FIRST_ROUNDS = (1, 3, 2) if SMOKE else (3, 14, 7)
SECONDS = ("seconds_train", "seconds_aggregate", "seconds_move")


def table(*shape: int) -> ClassTable:
    return ClassTable(torch.randn(*shape), torch.ones(shape[:-1], dtype=torch.bool))


def payload_of(name: str, method: Method, task: Task) -> Record:
    """Return the payload of a later round, with random tables."""
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
    """Return functions that make one local step each; recorded: as in a long run, which records steps."""
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
    return federations.local_steps(net, data, BATCH, prepared, parts, recorded=recorded)


def milliseconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


def measure_steps(*, recorded: bool) -> dict[str, Any]:
    """Measure one step of every method per turn, in random order: slow moments then hit all methods equally."""
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
    """Measure FedSC's RPCL and CPDR with their gradient by the features: 10 clients x 100 classes x 512 dimensions."""
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
    consts = {**start.consts, **federations.statistics_of(net, phase, start.consts, data, classes)}
    z, y = torch.randn(BATCH, width, requires_grad=True), torch.randint(0, classes, (BATCH,))
    batch = Batch(z, y)

    def work() -> None:
        options = method.options
        loss = fedsc.rpcl(z, batch, consts, options) + fedsc.cpdr(z, batch, consts, options.cpdr)
        torch.autograd.grad(loss, z)

    times = sorted(milliseconds(work) for _ in range(TURNS))
    return {"ms": round(times[len(times) // 2], 3), "ms_tenth": round(times[len(times) // 10], 3), "bound_ms": 3.0}


def costs() -> Figures:
    """Measure steps with and without recording, and FedSC's wide loss."""
    by_kind = {"steps": measure_steps(recorded=False), "recorded steps": measure_steps(recorded=True)}
    ratios = {f"{method}, {kind}": row["ratio"] for kind, rows in by_kind.items() for method, row in rows.items()}
    return {"figures": ratios, **by_kind, "fedsc_wide": measure_wide(), "turns": TURNS}


def operations() -> Figures:
    """Measure how much longer methods take than their operations say."""
    workload = replace(WORKLOADS["fashion"], model="lenet5")
    scenario = workload.scenario()

    def measured(method: str) -> tuple[float, float]:
        """The median seconds of a round after the first ones, and the operations of the run."""
        result = fl.run(
            method,
            scenario=scenario,
            model=workload.model,
            rounds=ROUNDS,
            participation=workload.sampled / scenario.clients,
            local_epochs=workload.epochs,
            batch_size=workload.batch,
            optimizer={"name": "sgd", "lr": LR},
            evaluation={"protocols": ["global/global", "personal/local"], "every": ROUNDS},
            engine="threads",
            progress=False,
        )
        by_round = dict.fromkeys(range(1, ROUNDS + 1), 0.0)
        for row in result.rows:
            if row["name"] in SECONDS:
                by_round[row["round"]] += row["value"]
        return median(list(by_round.values())[FIRST_ROUNDS:]), result.numbers["flops"]

    figures: Figures = {"figures": {}, "ranges": {}}
    for method in COSTLY:
        quotients = list[float]()
        for _ in range(OPERATION_TURNS):
            before, (seconds, flops), after = (measured(name) for name in ("fedavg", method, "fedavg"))
            ratio = flops / before[1]
            quotients.append(2 * seconds / (before[0] + after[0]) / ratio)
        figures["figures"][f"{method}: operations / fedavg's"] = round(ratio, 2)
        figures["figures"][f"{method}: time / operations"] = round(median(quotients), 2)
        figures["ranges"][f"{method}: time / operations"] = [round(min(quotients), 2), round(max(quotients), 2)]
    return figures
