"""A hundred rounds at the papers' rate, in every preset and with the lowest temperature: losses stay finite."""

import math

import pytest

from fedloom.methods.contract.phases import OptimizerSpec
from support import TinyBN, handmade, world

LABELS = [[0, 1, 2, 0, 1, 1], [1, 1, 2, 3, 3, 0, 1], [0, 0, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1]]
CASES = [("fedskc", {}), ("fedskc", {"tau": 0.01}), ("feddw", {}), ("fedsc", {}), ("fedsc", {"tau": 0.01})]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["paper", "authors", "sound"])
@pytest.mark.parametrize(("name", "options"), [*CASES, ("fedco2", {}), ("fedssa", {})])
def test_a_hundred_rounds_stay_finite(name, preset, options):
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
