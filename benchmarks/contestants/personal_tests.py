"""Tests of 100 clients' own nets: `python personal_tests.py IMAGES ENGINE`, one JSON object on standard output.

LeNet5, local training of ten clients a round, two rounds; after each all 100 nets are tested on the same IMAGES.
ENGINE: as in a config, in JSON. `evaluate`: the result's seconds of testing.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import fedloom as fl
from contestants.workloads import LR, WORKLOADS
from fedloom.data.views import Views


def main(images: int, engine: str) -> None:
    scenario = WORKLOADS["fashion"].scenario()
    indices = np.arange(images).reshape(scenario.clients, -1)
    scenario = replace(scenario, test_set=scenario.test_set.head(images), test=Views.from_lists(list(indices)))
    numbers = fl.run(
        "local",
        scenario=scenario,
        model="lenet5",
        rounds=2,
        participation=0.1,
        local_epochs=1,
        batch_size=32,
        optimizer={"name": "sgd", "lr": LR, "momentum": 0.0},
        evaluation={"protocol": "personal/global", "every": 1},
        engine=json.loads(engine),
    ).numbers
    print(json.dumps({"evaluate": numbers["seconds"]["evaluate"], "accuracy": numbers["accuracy"]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
