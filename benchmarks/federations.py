"""Federations of fedloom on any engine. Benchmarks reach the engines through this module alone."""

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from benchmarks.workloads import LR, Workload
from fedloom.core.errors import ConfigError
from fedloom.core.records import map_tensors
from fedloom.core.streams import Streams
from fedloom.data.augment import Augmentation
from fedloom.data.scenario import Scenario
from fedloom.engine import Federation, LocalTraining, RoundReport, Serial, Worker
from fedloom.engine.choose import EngineChoice, choose_engine
from fedloom.engine.device import check_precision, device_settings, find_device
from fedloom.engine.speedups import Speedups
from fedloom.methods import METHODS, Method
from fedloom.methods.contract.contexts import ClientContext, Start, Task
from fedloom.methods.contract.phases import OptimizerSpec, Phase
from fedloom.methods.fedavg import FedAvg
from fedloom.nets.blueprint import Blueprint

ROUNDS = 1000  # announced to the engines, so that they prepare for a long run
NOT_THERE = (ConfigError, TypeError, ValueError)  # `federation` raises these for an engine that is not available


class NoOp(FedAvg):
    """FedAvg whose clients do nothing."""

    def phases(self, start: Start, ctx: ClientContext) -> list[Phase]:
        return []


class BenchFederation(Federation):
    """A federation that computes in a precision of a config. reasons: why steps were not replayed."""

    worker: Worker
    precision: str
    reasons: frozenset[str] = frozenset()

    def step(self) -> RoundReport:
        with device_settings(self.worker.device, self.precision, deterministic=True):
            report = super().step()
        self.reasons |= {note.message for note in report.diagnostics if note.code == "engine.plain_steps"}
        return report


def federation(
    workload: Workload,
    scenario: Scenario | None = None,
    *,
    device: str = "cpu",
    precision: str = "float32",
    rounds: int = ROUNDS,
    **engine: Any,
) -> BenchFederation:
    """Return a federation on the workload, or on other clients. rounds: announced. engine: as in a config.

    Raises one of `NOT_THERE` if there is no such engine, or if it cannot run the workload.
    """
    scenario, choice = scenario or workload.scenario(), EngineChoice(**engine)
    method: Method = NoOp() if workload.method == "no-op" else METHODS.get(workload.method).configured("sound", {})
    if workload.method == "no-op":
        net = workload.net(scenario)
    else:
        needs: dict[str, Any] = {"head_bias": method.spec.head_bias, "nets": method.spec.nets, "extra": method.extra}
        shape, classes = scenario.train_set.input_shape, scenario.num_classes
        net = Blueprint(workload.model, shape, classes, **needs).build(Streams(0))
    optimizer = OptimizerSpec("sgd", LR, workload.momentum, workload.weight_decay)
    task = Task.of(
        net,
        clients=scenario.clients,
        num_classes=scenario.num_classes,
        rounds=rounds,
        local_epochs=workload.epochs,
        streams=Streams(0),
        optimizer=optimizer,
        batch_size=workload.batch,
    )
    local = LocalTraining(workload.batch, optimizer, Augmentation(crop=1 if method.spec.views == 2 else 0))
    found = find_device(device, choice.name, [net], scenario.train_set, workload.batch)
    check_precision(precision, found)
    half, speedups = precision == "bfloat16", Speedups(steps=choice.fast)
    worker = Worker(method, [net], scenario.train_set, local, found, bfloat16=half, speedups=speedups)
    participation, nets = workload.sampled / scenario.clients, [net.functional] if method.spec.public else []
    simulation = BenchFederation(method, Serial(worker), [task], scenario, participation=participation, nets=nets)
    simulation.worker, simulation.precision = worker, precision
    simulation.engine = choose_engine(simulation, worker, choice).engine
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


def facts(federation: BenchFederation) -> dict[str, Any]:
    """Return its engine and device, the share of steps so far that were replayed, and why others were not."""
    plain, replayed = (getattr(federation.worker.stepper, f"{kind}_steps", 0) for kind in ("plain", "replayed"))
    return {
        "engine": federation.engine.name,
        "device": str(federation.worker.device),
        "replayed": round(replayed / max(1, plain + replayed), 3),
        "reasons": sorted(federation.reasons),
    }


def weights_of(federation: Federation) -> list[Tensor]:
    """Return copies of all tensors of the server and the clients, on the CPU, in a fixed order."""
    tensors: list[Tensor] = []

    def kept(tensor: Tensor) -> Tensor:
        tensors.append(tensor.detach().cpu().clone())
        return tensor

    for record in (federation.server, *(federation.states[client] for client in sorted(federation.states))):
        map_tensors(record, kept)
    return tensors
