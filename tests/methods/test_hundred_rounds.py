"""A hundred rounds at the papers' rate, in every preset and with the lowest temperature: losses stay finite."""

import math

import pytest

from fedloom.methods.contract.phases import OptimizerSpec
from support import TinyBN, handmade, world

LABELS = [[0, 1, 2, 0, 1, 1], [1, 1, 2, 3, 3, 0, 1], [0, 0, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1]]
CASES = [("fedskc", {}), ("fedskc", {"tau": 0.01}), ("feddw", {}), ("fedsc", {}), ("fedsc", {"tau": 0.01})]
# `make test` runs the paper's preset of each, and the others where the temperature is the lowest.
RUNS = [
    pytest.param(*case, preset, marks=() if preset == "paper" or "tau" in case[1] else pytest.mark.matrix)
    for case in [*CASES, ("fedco2", {}), ("fedssa", {})]
    for preset in ("paper", "authors", "sound")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "preset"), RUNS)
def test_a_hundred_rounds_stay_finite(name, options, preset):
    toy = world(
        handmade(name, preset, **options),
        LABELS,
        net=TinyBN,
        rounds=100,
        optimizer=OptimizerSpec(lr=0.01),
        participation=0.75,
    )
    for _ in range(100):
        assert all(math.isfinite(value) for value in toy.federation.step().terms.values())
