"""Federations of fedloom on any engine. Benchmarks reach the engines through this module alone."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.workloads import LR, Workload
from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.scenario import Scenario
from fedloom.engine import Federation, LocalTraining, Serial, Worker
from fedloom.engine.choose import EngineChoice, choose_engine
from fedloom.methods import METHODS, Method
from fedloom.methods.contract.contexts import ClientContext, Start, Task
from fedloom.methods.contract.phases import OptimizerSpec, Phase
from fedloom.methods.fedavg import FedAvg
from fedloom.nets.blueprint import prepare_net

ROUNDS = 1000  # announced to the engines, so that they prepare for a long run
NOT_THERE = (ConfigError, TypeError, ValueError)  # `federation` raises these for an engine that is not available


class NoOp(FedAvg):
    """FedAvg whose clients do nothing."""

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return []


def federation(workload: Workload, scenario: Scenario | None = None, **engine: Any) -> Federation:
    """Return a federation on the workload, or on other clients. engine: as in a config, and `bfloat16`.

    Raises one of `NOT_THERE` if there is no such engine, or if it cannot run the workload.
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
    """Return in one line why an engine is not available."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return "there is no such engine" if "validation error" in lines[0] else lines[0]


def rounds(federation: Federation) -> Callable[[], int]:
    """Return a function that runs one round and returns the number of samples."""
    return lambda: federation.step().samples


def warmed(federation: Federation, seconds: float) -> Federation:
    """Run until the steady state of a long run: at least two rounds, and as many seconds. Returns the federation."""
    until = time.perf_counter() + seconds
    for number in range(10_000):
        if number > 1 and time.perf_counter() > until:
            break
        federation.step()
    return federation


def closed(federation: Federation) -> None:
    """End its processes."""
    federation.engine.close()


def engine_of(federation: Federation) -> str:
    """Return the name of its engine."""
    return federation.engine.name
