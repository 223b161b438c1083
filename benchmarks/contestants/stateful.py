"""Peak memory of a method with client states: `python stateful.py METHOD MODEL CLIENTS`, one JSON object.

60 samples of Fashion-MNIST a client, 10 clients a round, 100 rounds; 5 MiB of client states stay in memory.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from contestants.workloads import SMOKE, WORKLOADS, with_clients
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.run import run

ROUNDS = 2 if SMOKE else 100


def main(method: str, model: str, clients: int) -> None:
    config = {
        "method": method,
        "model": model,
        "scenario": {"source": "fashion-mnist", "partition": "iid", "clients": 1000, "val": 0},
        "rounds": ROUNDS,
        "participation": 10 / clients,
        "local_epochs": 1,
        "batch_size": 10,
        "engine": {"name": "serial", "state_budget_mb": 5},
        "evaluation": {"protocol": "personal/local", "every": ROUNDS},
        "checkpoint": {"seconds": 3600},
    }
    run_config = RunConfig.model_validate(config)
    scenario = with_clients(WORKLOADS["fashion"].scenario(), clients, 10 if SMOKE else 60)
    with tempfile.TemporaryDirectory() as folder:
        numbers = run(run_config, scenario=scenario, out=Path(folder) / "run").numbers
    print(json.dumps({"peak_memory_mb": numbers["peak_memory_mb"], "seconds": numbers["seconds"]["total"]}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
