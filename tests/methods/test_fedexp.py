"""FedExP: golden numbers, the step by hand, and where it is FedAvg."""

import pytest
import torch

from fedloom.methods.contract.phases import OptimizerSpec
from fedloom.methods.fedexp import FedExP
from golden_world import SHARED_BASELINES, golden_run, matches, probe, refuted, rounds_match
from support import TinyBN, after, configured, furthest, world

GOLD = SHARED_BASELINES["fedexp"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
EPS, EPOCHS = GOLD["options"]["eps"], GOLD["options"]["steps"]


@pytest.mark.parametrize(("way", "weights"), [("out", "samples"), ("uniform", "uniform")])
def test_golden(way, weights):
    gold = GOLD["out"] if way == "out" else GOLD["uniform"]
    federation, servers = golden_run(FedExP, rounds=2, epochs=EPOCHS, eps=EPS, weights=weights)
    assert rounds_match(servers, gold)
    for number, server in enumerate(servers, 1):
        assert server["rate"] == pytest.approx(gold["rates"][number - 1], abs=1e-7)
    offered = federation.method.predictors(servers[-1], None, federation.server_context())
    assert matches(offered["global"].tree, gold["average_of_last_two"])
    assert refuted(servers[1]["model"], GOLD)


def test_the_authors_multiply_eps_by_participants():
    _, servers = golden_run(FedExP, rounds=2, epochs=EPOCHS, eps=EPS, eps_by_participants=True)
    assert abs(probe(servers[1]["model"]) - GOLD["authors_eps_times_m_probe"]) < 1e-7


def moved(method, *moves):
    """The server's state after uploads that moved `fc.bias` so."""
    toy = world(method, LABELS)
    server, ctx = toy.federation.server, toy.federation.server_context()
    uploads = {}
    for client, move in enumerate(moves):
        model = dict(server["model"])
        model["fc.bias"] = model["fc.bias"] + torch.tensor(move)
        square = torch.tensor(move, dtype=torch.float64).square().sum()
        uploads[client] = {"model": model, "squared_length": square, "samples": 3}
    return server, method.aggregate(server, uploads, ctx)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_orthogonal_changes_take_half_their_number_as_step(count):
    moves = [[2.0 if i == k else 0.0 for i in range(6)] for k in range(count)]
    old, new = moved(configured("fedexp", eps=0.0), *moves)
    rate = max(1.0, count / 2)
    assert new["rate"] == pytest.approx(rate, rel=1e-6)
    change = new["model"]["fc.bias"] - old["model"]["fc.bias"]
    assert torch.allclose(change, torch.tensor(moves).mean(0) * rate, atol=1e-6)


def test_equal_changes_and_no_change_take_the_mean():
    move = [1.0, 0.0, 0.0, 0.0, 0.0, 2.0]
    assert moved(configured("fedexp"), move, move)[1]["rate"] == 1.0
    assert moved(configured("fedexp", eps=0.0), [0.0] * 6, [0.0] * 6)[1]["rate"] == 1.0


def test_buffers_are_averaged_and_never_extrapolated():
    toys = [
        after(world(configured(n, **o), LABELS, net=TinyBN), 1) for n, o in (("fedavg", {}), ("fedexp", {"eps": 0}))
    ]
    models = [toy.federation.server["model"] for toy in toys]
    assert toys[1].federation.server["rate"] > 1
    assert torch.equal(*(model["norm.running_var"] for model in models))
    assert furthest(*models) > 1e-3


def test_the_next_round_starts_from_the_last_iterate():
    toy = after(world(configured("fedexp"), LABELS), 2)
    server, ctx = toy.federation.server, toy.federation.server_context()
    assert toy.method.down(server, 0, ctx).keys() == {"model"}
    assert toy.method.down(server, 0, ctx)["model"] is server["model"]
    assert toy.method.figures(server, ctx) == {"server_step": server["rate"]}
    plain = configured("fedexp", average=False)
    assert plain.predictors(server, None, ctx)["global"].tree is server["model"]


def test_momentum_at_the_clients_is_reported():
    (found,) = world(configured("fedexp"), LABELS, optimizer=OptimizerSpec(momentum=0.9)).federation.initial_diagnostics
    assert found.code == "fedexp.not_plain_sgd"
    assert "momentum 0.9" in found.message
