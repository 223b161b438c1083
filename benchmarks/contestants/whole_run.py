"""A whole run of fedloom: `python whole_run.py WORKLOAD ROUNDS EVERY ENGINE`, one JSON object on standard output.

EVERY: rounds between two tests. ENGINE: as in a config, in JSON. `seconds`: from the call to the result; `evaluate`:
those of the tests.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fedloom as fl
from contestants.workloads import LR, WORKLOADS


def main(name: str, rounds: int, every: int, engine: str) -> None:
    workload = WORKLOADS[name]
    scenario = workload.scenario()
    began = time.perf_counter()
    numbers = fl.run(
        workload.method,
        scenario=scenario,
        model=workload.model,
        rounds=rounds,
        participation=workload.sampled / scenario.clients,
        local_epochs=workload.epochs,
        batch_size=workload.batch,
        optimizer={"name": "sgd", "lr": LR, "momentum": workload.momentum, "weight_decay": workload.weight_decay},
        evaluation={"protocol": "global/global", "every": every},
        engine=json.loads(engine),
    ).numbers
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "evaluate": numbers["seconds"]["evaluate"], "engine": numbers["engine"]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
