"""A run of fedloom in a separate process: `python -m benchmarks.contestants.fedloom_run KIND ARGUMENTS`, one JSON
object on standard output.

    whole WORKLOAD ROUNDS EVERY ENGINE   seconds from the call to the result, and those of the tests every EVERY rounds
    tests IMAGES ENGINE                  seconds of testing 100 clients' own nets, twice, on IMAGES images in all
    memory METHOD MODEL CLIENTS          peak memory with client states beyond 5 MiB on disk

ENGINE is that of a config, in JSON.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fedloom as fl
from benchmarks.workloads import LR, SMOKE, WORKLOADS, Workload, with_clients
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.run import run


def whole_run(workload: Workload, scenario: Scenario, rounds: int, every: int, engine: dict[str, Any]) -> fl.Result:
    """Run a workload from start to end; it is tested every `every` rounds."""
    return fl.run(
        workload.method,
        scenario=scenario,
        model=workload.model,
        rounds=rounds,
        participation=workload.sampled / scenario.clients,
        local_epochs=workload.epochs,
        batch_size=workload.batch,
        optimizer={"name": "sgd", "lr": LR, "momentum": workload.momentum, "weight_decay": workload.weight_decay},
        evaluation={"protocol": "global/global", "every": every},
        engine=engine,
    )


def whole(name: str, rounds: str, every: str, engine: str) -> dict[str, Any]:
    """Measure a whole run."""
    scenario = WORKLOADS[name].scenario()
    began = time.perf_counter()
    numbers = whole_run(WORKLOADS[name], scenario, int(rounds), int(every), json.loads(engine)).numbers
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "evaluate": numbers["seconds"]["evaluate"], "engine": numbers["engine"]}


def tests(images: str, engine: str) -> dict[str, Any]:
    """Train ten of 100 clients' LeNet5 in each of two rounds, and test all 100 after each."""
    scenario = WORKLOADS["fashion"].scenario()
    indices = np.arange(int(images)).reshape(scenario.clients, -1)
    test_set = scenario.test_set.head(int(images))
    numbers = fl.run(
        "local",
        scenario=replace(scenario, test_set=test_set, test=Views.from_lists(list(indices))),
        model="lenet5",
        rounds=2,
        participation=0.1,
        local_epochs=1,
        batch_size=32,
        optimizer={"name": "sgd", "lr": LR, "momentum": 0.0},
        evaluation={"protocol": "personal/global", "every": 1},
        engine=json.loads(engine),
    ).numbers
    return {"evaluate": numbers["seconds"]["evaluate"], "accuracy": numbers["accuracy"]}


def memory(method: str, model: str, clients: str) -> dict[str, Any]:
    """Train ten clients of 60 samples of Fashion-MNIST in each of 100 rounds."""
    rounds = 2 if SMOKE else 100
    config = {
        "method": method,
        "model": model,
        "scenario": {"source": "fashion-mnist", "partition": "iid", "clients": 1000, "val": 0},
        "rounds": rounds,
        "participation": 10 / int(clients),
        "local_epochs": 1,
        "batch_size": 10,
        "engine": {"name": "serial", "state_budget_mb": 5},
        "evaluation": {"protocol": "personal/local", "every": rounds},
        "checkpoint": {"seconds": 3600},
    }
    run_config = RunConfig.model_validate(config)
    scenario = with_clients(WORKLOADS["fashion"].scenario(), int(clients), 10 if SMOKE else 60)
    with tempfile.TemporaryDirectory() as folder:
        numbers = run(run_config, scenario=scenario, out=Path(folder) / "run").numbers
    return {"peak_memory_mb": numbers["peak_memory_mb"], "seconds": numbers["seconds"]["total"]}


KINDS: dict[str, Callable[..., dict[str, Any]]] = {"whole": whole, "tests": tests, "memory": memory}


if __name__ == "__main__":
    print(json.dumps(KINDS[sys.argv[1]](*sys.argv[2:])))
