"""The rate of the round is used everywhere: in private steps, in inner loops, at the server, and in a closing round.

A federation whose rate of 0.1 decays to a half does in round 2 what one whose rate of 0.2 decays to a quarter does from
the same states.
"""

import pytest

from fedloom.data.augment import Augmentation
from fedloom.methods.contract.method import METHODS
from fedloom.methods.contract.phases import OptimizerSpec
from support import TinyBN, World, handmade, leaves, same_bits, world

LABELS = [[0, 1, 2, 0, 1, 1], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1]]
RATE, DECAY = 0.1, 0.5
# Options under which a private or server rate is the round's, and under which the rate may decay.
OPTIONS = {
    "scaffold": {"option": 1},
    "apfl": {"alpha_lr": None},
    "ccvr": {"server_lr": None},
    "fedtgp": {"server_lr": None},
}


def federation(name: str, lr: float, decay: float) -> World:
    method = handmade(name, **OPTIONS.get(name, {}))
    optimizer = OptimizerSpec(lr=lr, momentum=0.0, decay=decay)
    if method.spec.views > 1:  # of images
        crop = Augmentation(crop=2)
        return world(method, LABELS, net="mlp", shape=(1, 6, 6), rounds=2, optimizer=optimizer, augment=crop)
    return world(method, LABELS, net=TinyBN, rounds=2, optimizer=optimizer)


def second_round(name: str, lr: float, decay: float) -> World:
    """The federation after a round at `RATE`, and another one at the rate that is asked for."""
    before, after = federation(name, RATE, DECAY), federation(name, lr, decay)
    before.federation.step()
    after.federation.server, after.federation.round = before.federation.server, 1
    for client, state in before.federation.states.items():
        after.federation.states[client] = state
    after.federation.step()
    return after


@pytest.mark.parametrize("name", METHODS.names())
def test_every_rate_of_a_method_that_is_the_rounds_decays(name: str) -> None:
    first, second = second_round(name, RATE, DECAY), second_round(name, 2 * RATE, DECAY / 2)
    assert same_bits(first.federation.server, second.federation.server)
    assert first.federation.states.keys() == second.federation.states.keys()
    for client, state in first.federation.states.items():
        assert same_bits(state, second.federation.states[client])


@pytest.mark.parametrize("name", METHODS.names())
def test_the_rate_makes_a_difference_to_what_is_compared(name: str) -> None:
    decayed, constant = second_round(name, RATE, DECAY), second_round(name, RATE, 1.0)
    records = [
        {"server": leaves(toy.federation.server), **{k: leaves(state) for k, state in toy.federation.states.items()}}
        for toy in (decayed, constant)
    ]
    assert str(records[0]) != str(records[1])
