"""Runs that diverge, last a hundred rounds, or whose learning rate decays."""

import math

import pytest

import fedloom as fl
from fedloom.data.augment import Augmentation
from fedloom.methods.catalogue import entries
from fedloom.methods.contract.method import METHODS
from fedloom.methods.contract.phases import OptimizerSpec
from support import TinyBN, World, handmade, leaves, same_bits, sampled, world

# -- divergence --------------------------------------------------------------------------------------------------------
FAR = {"name": "sgd", "lr": 1e8}
NORMED = {"fednh", "fedpcl"}  # unit features, and no head that trains: their losses stay finite
ENTRIES = {entry.name: entry for entry in entries()}


# A loss that stays finite, state that diverges too, training on the server, and tables in place of weights.
@pytest.mark.parametrize("name", sampled(ENTRIES, "fednh", "scaffold", "feddf", "fedgen", "fedproto"))
def test_a_run_that_diverges_ends_and_says_so(name: str) -> None:
    entry = ENTRIES[name]
    protocol = "personal/local" if "personal" in entry.yields else "global/global"
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.3, clients=3, seed=0, public=0.05)
    result = fl.run(
        entry.name,
        scenario=scenario,
        rounds=2,
        local_epochs=1,
        model="digits-cnn",
        optimizer=FAR,
        engine="serial",
        augment={"crop": 1},
        evaluation={"protocol": protocol},
    )
    assert len(result.curve()[0]) == 2
    assert entry.name in NORMED or any("diverged" in message for message in result.numbers["degenerate"])


# -- hundred_rounds ----------------------------------------------------------------------------------------------------
LABELS_HUNDRED_ROUNDS = [[0, 1, 2, 0, 1, 1], [1, 1, 2, 3, 3, 0, 1], [0, 0, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1]]
PLAIN = [("fedskc", {}), ("feddw", {}), ("fedsc", {})]
CASES = [*PLAIN, ("fedskc", {"tau": 0.01}), ("fedsc", {"tau": 0.01}), ("fedco2", {}), ("fedssa", {})]
# `make test` runs the paper's preset where the temperature is the lowest, and of Fed-CO2 and FedSSA.
RUNS = [
    pytest.param(*case, preset, marks=() if preset == "paper" and case not in PLAIN else pytest.mark.matrix)
    for case in CASES
    for preset in ("paper", "authors", "sound")
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "preset"), RUNS)
def test_a_hundred_rounds_stay_finite(name, options, preset):
    toy = world(
        handmade(name, preset, **options),
        LABELS_HUNDRED_ROUNDS,
        net=TinyBN,
        rounds=100,
        optimizer=OptimizerSpec(lr=0.01),
        participation=0.75,
    )
    for _ in range(100):
        assert all(math.isfinite(value) for value in toy.federation.step().terms.values())


# -- rate_decay --------------------------------------------------------------------------------------------------------
LABELS_RATE_DECAY = [[0, 1, 2, 0, 1, 1], [1, 1, 2, 3, 3, 0, 1], [2, 3, 2, 1, 0, 2, 2, 2, 1]]
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
        return world(method, LABELS_RATE_DECAY, net="mlp", shape=(1, 6, 6), rounds=2, optimizer=optimizer, augment=crop)
    return world(method, LABELS_RATE_DECAY, net=TinyBN, rounds=2, optimizer=optimizer)


def second_round(name: str, lr: float, decay: float) -> World:
    """The federation after a round at `RATE`, and another one at the rate that is asked for."""
    before, after = federation(name, RATE, DECAY), federation(name, lr, decay)
    before.federation.step()
    after.federation.server, after.federation.round = before.federation.server, 1
    for client, state in before.federation.states.items():
        after.federation.states[client] = state
    after.federation.step()
    return after


@pytest.mark.parametrize("name", sampled(METHODS.names(), *OPTIONS))
def test_every_rate_of_a_method_that_is_the_rounds_decays(name: str) -> None:
    first, second = second_round(name, RATE, DECAY), second_round(name, 2 * RATE, DECAY / 2)
    assert same_bits(first.federation.server, second.federation.server)
    assert first.federation.states.keys() == second.federation.states.keys()
    for client, state in first.federation.states.items():
        assert same_bits(state, second.federation.states[client])


@pytest.mark.parametrize("name", sampled(METHODS.names(), *OPTIONS))
def test_the_rate_makes_a_difference_to_what_is_compared(name: str) -> None:
    decayed, constant = second_round(name, RATE, DECAY), second_round(name, RATE, 1.0)
    records = [
        {"server": leaves(toy.federation.server), **{k: leaves(state) for k, state in toy.federation.states.items()}}
        for toy in (decayed, constant)
    ]
    assert str(records[0]) != str(records[1])
