"""A whole run of fedloom: `python whole_run.py WORKLOAD ROUNDS ENGINE`, one JSON object on standard output.

ENGINE: as in a config, in JSON. Seconds from the call to the result, less those of the one test at the end.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fedloom as fl
from contestants.workloads import LR, WORKLOADS


def main(name: str, rounds: int, engine: str) -> None:
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
        evaluation={"protocol": "global/global", "every": rounds},
        engine=json.loads(engine),
    ).numbers
    seconds = time.perf_counter() - began - numbers["seconds"]["evaluate"]
    print(json.dumps({"seconds": seconds, "engine": numbers["engine"]}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
