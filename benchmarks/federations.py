"""Federations of fedloom on any engine. Benchmarks reach the engines through this module alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.workloads import LR, Workload
from fedloom.core.errors import ConfigError
from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.engine import Federation, LocalTraining, Serial, Worker
from fedloom.engine.batch_sampler import EpochBatches
from fedloom.engine.choose import EngineChoice, choose_engine
from fedloom.engine.client import run_all
from fedloom.engine.client_memory import NetMemory
from fedloom.engine.fast import Replayer
from fedloom.engine.jobs import Draws
from fedloom.engine.memory import keep_freed_memory
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.steps import Block, EpochSteps, pass_function, trainable_names
from fedloom.methods import METHODS, Method
from fedloom.methods.contract.contexts import ClientContext, Start, Task
from fedloom.methods.contract.phases import Batch, Consts, OptimizerSpec, Phase, Train
from fedloom.methods.fedavg import FedAvg
from fedloom.nets.blueprint import prepare_net
from fedloom.nets.net import Net

ROUNDS = 1000  # announced to the engines, so that they prepare for a long run
NOT_THERE = (ConfigError, TypeError, ValueError)  # what `federation` raises for an engine that cannot be had
__all__ = [
    "NOT_THERE",
    "closed",
    "engine_of",
    "federation",
    "keep_freed_memory",
    "local_steps",
    "reason_of",
    "rounds",
    "statistics_of",
    "warmed",
]


class NoOp(FedAvg):
    """FedAvg whose clients do nothing."""

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return []


def federation(workload: Workload, scenario: Scenario | None = None, **engine: Any) -> Federation:
    """A federation on the workload (or on other clients); `engine` as in a config, `{}` the default, and `bfloat16`.

    Raises one of `NOT_THERE` if there is no such engine, or if it cannot run this.
    """
    scenario = scenario or workload.scenario()
    device, half = torch.device(engine.pop("device", "cpu")), engine.pop("bfloat16", False)
    method: Method = NoOp() if workload.method == "no-op" else METHODS.get(workload.method).configured("sound", {})
    net = workload.net(scenario)
    if workload.method != "no-op":
        net = prepare_net(net, head_bias=method.spec.head_bias, nets=method.spec.nets, extra=method.extra)
    optimizer = OptimizerSpec("sgd", LR, workload.momentum, workload.weight_decay)
    task = Task.of(
        net,
        clients=scenario.clients,
        num_classes=scenario.num_classes,
        rounds=ROUNDS,
        local_epochs=workload.epochs,
        streams=Streams(0),
        optimizer=optimizer,
        batch_size=workload.batch,
    )
    local = LocalTraining(workload.batch, optimizer)
    worker = Worker(method, [net], scenario.train_set, local, device, bfloat16=half)
    simulation = Federation(method, Serial(worker), [task], scenario, participation=workload.sampled / scenario.clients)
    simulation.engine = choose_engine(simulation, worker, EngineChoice(**engine)).engine
    return simulation


def reason_of(error: Exception) -> str:
    """Why an engine cannot be had, in one line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "there is no such engine" if "validation error" in lines[0] else lines[0]


def rounds(federation: Federation) -> Callable[[], int]:
    """A function that runs one round and returns the number of samples."""
    return lambda: federation.step().samples


def warmed(federation: Federation, seconds: float) -> Federation:
    """After two rounds at least and what else is not the steady state of a long run."""
    until = time.perf_counter() + seconds
    for number in range(10_000):
        if number > 1 and time.perf_counter() > until:
            break
        federation.step()
    return federation


def closed(federation: Federation) -> None:
    """Give back its processes."""
    federation.engine.close()


def engine_of(federation: Federation) -> str:
    """The engine that it has, in a word or two."""
    return federation.engine.name


@torch.no_grad()
def statistics_of(net: Net, phase: Train, consts: Consts, data: Dataset, classes: int) -> dict[str, Any]:
    """The statistics that a phase takes before every epoch, of all samples in one batch, in evaluation mode."""
    everything = Batch(data.gather(torch.arange(len(data))), data.y)
    net.eval()
    results = {}
    for name, statistic in phase.refresh.items():
        values = pass_function(name, statistic)(net, everything, consts)
        results[name] = statistic.result(statistic.add({}, values, everything, classes))
    net.train()
    return results


class _NoResults:
    """Discards the results of steps."""

    def wants(self, epoch: EpochBatches) -> bool:
        return False

    def add(self, *results: Any) -> None:
        pass

    add_replayed = add


def local_steps(
    net: Net,
    data: Dataset,
    batch: int,
    prepared: dict[str, tuple[Method, Record, ClientContext]],
    parts: Iterator[Tensor],
    *,
    recorded: bool,
) -> dict[str, Callable[[], None]]:
    """Functions that make one local step each (batch gathered, gradients, update) on the samples that `parts` yields.

    prepared: by name a method, the payload that the server sends, and the client. All steps work in the same memory,
    because the place of weights changes times by 10 %. recorded: as in a long run.
    """
    worker = Worker(Method(), [net], data, LocalTraining(batch, OptimizerSpec("sgd", 0.01, 0.9)))
    stepper = Replayer(data, eager=True)

    def step_of(method: Method, payload: Record, ctx: ClientContext) -> Callable[[], None]:
        start = method.begin(payload, {}, ctx)
        phase = next(phase for phase in method.phases(start, ctx) if isinstance(phase, Train))
        consts = {**start.consts, **statistics_of(net, phase, start.consts, data, ctx.task.num_classes)}
        live = worker.loaded_nets[0]
        trained = {name: live.parameters[name] for name in trainable_names(live.parameters, phase, ctx)}
        optimizer = Optimizer(worker.local_training.optimizer, list(trained.values()))
        steps = EpochSteps(live, phase, consts, trained, optimizer, remaining_ratio=1.0)

        memory = NetMemory(live, dict(live.tree), ctx.task.streams.resumable("dropout"))

        def step() -> None:
            part = next(parts)
            if recorded:
                epoch = EpochBatches(worker.sampler, Draws(np.random.default_rng(0), None), part, 0)
                run_all(stepper(steps, memory, [epoch], _NoResults()))
            else:
                steps.run(Block(data.gather(part), data.y[part], batch))

        return step

    return {name: step_of(*arguments) for name, arguments in prepared.items()}
