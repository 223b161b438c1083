"""Every method in many settings: stacks of clients agree with clients one by one.

Nets are in double precision, so that only a fault can show. Passes over a client's data take three samples at a time:
clients of a stack need different numbers of them.
"""

import pytest

from fedloom.methods import METHODS
from fedloom.methods.contract.phases import OptimizerSpec
from stacked_world import DoubleBN, agree
from support import ROW_METHODS, Tiny, configured, handmade, sampled

METHODS_IN_STACKS = [name for name in ROW_METHODS if METHODS.get(name).spec.unstackable is None]
UNEQUAL = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0, 3]]
VERY_UNEQUAL = [[i % 4 for i in range(size)] for size in (17, 5, 30, 9, 2)]
ONE_CLASS_EACH = [[0] * 11, [1] * 3, [2, 3] * 4, [0, 1, 2, 3] * 4]
EQUAL = [[0, 1, 2, 3, 0, 1, 2, 3]] * 4


class DoubleTiny(Tiny):
    """In float64, where rounding cannot hide a difference."""

    def __init__(self):
        super().__init__()
        self.double()

    def features(self, x):
        return super().features(x.double())


HEAVY = {"optimizer": OptimizerSpec(momentum=0.9, weight_decay=1e-3)}
SETTINGS = {
    "unequal": {"labels": UNEQUAL},
    "very unequal": {"labels": VERY_UNEQUAL, "net": DoubleBN},
    "three epochs": {"labels": VERY_UNEQUAL, "epochs": 3},
    "some take part": {"labels": ONE_CLASS_EACH, "participation": 0.6, "net": DoubleBN},
    "momentum": {"labels": UNEQUAL, "net": DoubleBN, **HEAVY},
}
MORE = {
    "equal": {"labels": EQUAL},
    "equal, batch norm": {"labels": EQUAL, "net": DoubleBN, "epochs": 2},
    "one class each": {"labels": ONE_CLASS_EACH},
    "one class each, batch norm": {"labels": ONE_CLASS_EACH, "net": DoubleBN},
    "unequal, batch norm": {"labels": UNEQUAL, "net": DoubleBN, "epochs": 3},
    "very unequal, plain": {"labels": VERY_UNEQUAL},
    "some take part, plain": {"labels": VERY_UNEQUAL, "participation": 0.4},
    "momentum, plain": {"labels": VERY_UNEQUAL, **HEAVY},
    "momentum, one class each": {"labels": ONE_CLASS_EACH, "epochs": 2, **HEAVY},
    "three rounds": {"labels": UNEQUAL, "rounds": 3, "participation": 0.6},
}


@pytest.fixture(autouse=True)
def _short_passes(monkeypatch):
    for module in ("fedloom.engine.batch_sampler", "fedloom.engine.stacked.members"):
        monkeypatch.setattr(f"{module}.PASS_BATCH", 3)


# The search for beta ends where rounding hides the slope: early where each client has one class, and its loss is flat.
FLAT = {"pfedfda": {"tolerance": 1e-4}}


def agrees(name, settings):
    plain = {"optimizer": OptimizerSpec()} if name in ("fednova", "qfedavg", "scaffold") else {}
    agree(handmade(name), **({"net": DoubleTiny} | FLAT.get(name, {}) | settings | plain))


@pytest.mark.parametrize("name", sampled(METHODS_IN_STACKS, "ditto", "fedproto", "moon", "scaffold"))
def test_every_method_in_five_settings(name):
    for settings in SETTINGS.values():
        agrees(name, settings)


@pytest.mark.matrix
@pytest.mark.parametrize("name", METHODS_IN_STACKS)
def test_every_method_in_ten_more_settings(name):
    for settings in MORE.values():
        agrees(name, settings)


@pytest.mark.parametrize("preset", ["paper", "authors"])
@pytest.mark.parametrize("name", ["fedsc", "fedskc", "fedsc+dw"])
def test_prototypes_of_clients_with_different_numbers_of_passes(name, preset):
    """The statistic of a pass had one row for all clients of a stack, into which later passes wrote."""
    agree(configured(name, preset), labels=VERY_UNEQUAL, net=DoubleTiny, rounds=3)
