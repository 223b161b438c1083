"""FD against golden numbers of three rounds, and what each client receives."""

import pytest
import torch

from fedloom.core.records import get_table
from fedloom.methods import METHODS
from golden_world import GOLDEN, golden_run, matches, probe
from support import Recording, configured, world

GOLD = GOLDEN["fd"]
LABELS = [[0, 0, 1, 1, 0], [0, 1, 1], [0, 2, 2, 0, 2, 2], [1]]
FD = METHODS.get("fd")


def all_nets(federation):
    states = (federation.state_of(federation.client_context(client, 1)) for client in range(3))
    return sum(probe(state["model"]) for state in states)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_golden_rounds(rounds):
    federation, servers = golden_run(FD, rounds=rounds, **GOLD["options"])
    for number, server in enumerate(servers, 1):
        sent = GOLD["out"][f"round{number}"]["sent"]
        assert server["senders"].tolist() == [int(client) for client in sent]
        for values, held, wanted in zip(*_parts(server), sent.values(), strict=True):
            assert matches({"": values}, {"": wanted["rows"]}, tolerance=2e-6)
            assert held.tolist() == wanted["held"]
    assert abs(all_nets(federation) - GOLD["out"][f"round{rounds}"]["probe"]) < 6e-6
    if rounds == 3:
        for client, own in GOLD["out"]["own"].items():
            assert matches(federation.states[int(client)]["model"], own, tolerance=2e-6)
        assert abs(all_nets(federation) - GOLD["WRONG_own_row_too"]) > 1e-3


@pytest.mark.parametrize("outputs_from", ["training", "last_epoch"])
def test_golden_outputs_of_training(outputs_from):
    """Collected at the steps, before each: of both epochs."""
    federation, _ = golden_run(FD, rounds=3, outputs_from=outputs_from, **GOLD["options"])
    near = abs(all_nets(federation) - GOLD["during_probe"]) < 6e-6
    assert near == (outputs_from == "training")
    assert configured("fd", "paper").options.outputs_from == "training"


def _parts(server):
    table = get_table(server, "outputs")
    return table.values, table.held


def test_two_holders_receive_each_others_rows_and_a_sole_one_nothing():
    toy = world(configured("fd"), [[0, 0, 1], [0, 1, 2], [3, 3]], engine=Recording)
    toy.federation.step()
    sent = {done.client: get_table(done.upload, "outputs") for done in toy.federation.engine.done}
    received = {
        client: get_table(toy.method.down(toy.federation.server, client, toy.federation.server_context()), "targets")
        for client in range(3)
    }
    assert received[0].held.tolist() == [True, True, True, True]
    assert torch.equal(received[0].values[:2], sent[1].values[:2])
    assert torch.equal(received[1].values[:2], sent[0].values[:2])
    assert received[1].held.tolist() == [True, True, False, True]
    assert received[2].held.tolist() == [True, True, True, False]


@pytest.mark.parametrize("outputs_from", ["training", "last_epoch"])
def test_outputs_of_an_epoch_are_those_before_each_step(outputs_from):
    toy = world(configured("fd", outputs_from=outputs_from), LABELS, batch_size=9)
    first = torch.softmax(toy.net(toy.data.x[:5]), 1).detach()
    toy.federation.step()
    mine = get_table(toy.federation.server, "outputs").values[0]
    labels = torch.tensor(LABELS[0])
    for label in (0, 1):
        assert torch.allclose(mine[label], first[labels == label].mean(0), atol=1e-6)
