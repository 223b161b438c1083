"""Time against operations: `python benchmarks/operations.py [METHOD ...]`.

A method that computes twice as much should take twice as long. Prints, for each method, the operations of a run over
FedAvg's, and its time of a round over FedAvg's, which runs before and after it. Both train LeNet5 on threads, with 10
of 100 clients of unequal sizes a round, on Fashion-MNIST. A server's own training counts as time alone.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import fedloom as fl
from contestants.workloads import LR, SMOKE, WORKLOADS

METHODS = ("copa", "pfedme", "fedrep", "perfedavg", "fedgen", "fednh", "fedtgp", "scaffold", "feddyn")
TURNS, ROUNDS, FIRST_ROUNDS = (1, 3, 2) if SMOKE else (3, 14, 7)
SECONDS = ("seconds_train", "seconds_aggregate", "seconds_move")
WORKLOAD = replace(WORKLOADS["fashion"], model="lenet5")


def measured(method: str, scenario: fl.Scenario) -> tuple[float, float]:
    """The median seconds of a round of a method after the first ones, and the operations of the run."""
    result = fl.run(
        method,
        scenario=scenario,
        model=WORKLOAD.model,
        rounds=ROUNDS,
        participation=WORKLOAD.sampled / scenario.clients,
        local_epochs=WORKLOAD.epochs,
        batch_size=WORKLOAD.batch,
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


def main() -> None:
    scenario = WORKLOAD.scenario()
    for method in [word for word in sys.argv[1:] if word != "--smoke"] or METHODS:
        quotients = list[float]()
        for _ in range(TURNS):
            before, (seconds, flops), after = (measured(name, scenario) for name in ("fedavg", method, "fedavg"))
            operations = flops / before[1]
            quotients.append(2 * seconds / (before[0] + after[0]) / operations)
        spread = f"{min(quotients):.2f} to {max(quotients):.2f}"
        print(f"{method}: {operations:.2f} times the operations; time / operations {median(quotients):.2f} ({spread})")


if __name__ == "__main__":
    main()
