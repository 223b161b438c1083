"""fedloom: FedAvg on an engine of choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from contestants.workloads import LR, WORKLOADS, Workload, with_clients
from fedloom.core.streams import Streams
from fedloom.data.scenario import Scenario
from fedloom.engine import Federation, LocalTraining, Serial, Worker
from fedloom.engine.choose import EngineChoice
from fedloom.methods.facts import Task
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.phases import OptimizerSpec


def federation(workload: Workload, scenario: Scenario | None = None, **engine: Any) -> Federation:
    """FedAvg on the workload (or on other clients), with the engine that `EngineChoice(**engine)` asks for."""
    scenario, method = scenario or workload.scenario(), FedAvg()
    net = workload.net(scenario)
    task = Task.of(
        net,
        clients=scenario.clients,
        num_classes=scenario.num_classes,
        rounds=100,
        local_epochs=1,
        streams=Streams(0),
    )
    worker = Worker(method, [net], scenario.train_set, LocalTraining(workload.batch, OptimizerSpec("sgd", LR)))
    made = Federation(method, Serial(worker), [task], scenario, participation=workload.sampled / scenario.clients)
    equip(made, worker, EngineChoice(**engine))
    return made


def rounds(made: Federation) -> Callable[[], int]:
    """A function that runs one round and returns the number of samples."""
    return lambda: made.step().samples


def registered(clients: int, **engine: Any) -> Federation:
    """Logistic regression, 100 of `clients` a round, 60 samples each out of the same 60,000."""
    workload = WORKLOADS["logistic"]
    return federation(workload, with_clients(workload.scenario(), clients), **engine)
