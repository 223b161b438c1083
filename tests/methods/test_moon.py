"""MOON: golden numbers, the first participation, and the contrast where both anchors agree."""

import pytest

from fedloom.methods.contract.phases import Batch
from fedloom.methods.moon import MOON
from golden_world import GOLDEN, golden_run, noting, refuted, rounds_match
from support import after, configured, same_tree, world

GOLD = GOLDEN["moon"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def test_golden():
    kind, firsts = noting(MOON)
    _, servers = golden_run(kind, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])
    assert refuted(servers[2]["model"], GOLD)
    assert {k: float(out.total.detach()) for k, out in firsts.items()} == pytest.approx(
        GOLD["out"]["first_losses"], abs=1e-7
    )


def test_a_new_client_has_no_contrast_whatever_the_round():
    toy = world(configured("moon"), LABELS)
    after(toy, 2)
    ctx = toy.federation.client_context(0, 3)
    payload = {"model": toy.federation.server["model"]}
    assert "previous" not in toy.method.begin(payload, {}, ctx).consts
    x, y = toy.samples(0)
    consts = toy.method.begin(payload, toy.federation.states[0], ctx).consts
    assert list(toy.method.loss(toy.net, Batch(x, y), consts).terms) == ["ce", "contrast"]


def test_the_last_model_is_the_clients_own_before_aggregation():
    toy = world(configured("moon"), LABELS[:2], epochs=2)
    job = toy.job(0)
    done = toy.worker.run(job)
    assert same_tree(done.state["previous"], done.upload["model"])


@pytest.mark.parametrize(("preset", "mu"), [("paper", 5), ("authors", 1), ("sound", 5), ("feddw", 5), ("fedco2", 1)])
def test_presets(preset, mu):
    options = configured("moon", preset).options
    assert (options.mu, options.tau) == (mu, 0.5)
