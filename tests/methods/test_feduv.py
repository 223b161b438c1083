"""FedUV: golden numbers, both terms by hand, padding."""

import pytest
import torch

from fedloom.methods.contract.phases import Batch
from fedloom.methods.feduv import FedUV, missing_spread, nearness
from golden_world import GOLDEN, WORLD, GoldenNet, golden_run, probe, refuted, rounds_match
from support import Recording, configured, world

GOLD = GOLDEN["feduv"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


def batch_of(rows):
    return Batch(torch.zeros(rows, 1), torch.zeros(rows, dtype=torch.int64))


def test_golden():
    _, servers = golden_run(FedUV, rounds=2, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])
    assert refuted(servers[1]["model"], GOLD)
    assert abs(probe(servers[1]["model"]) - GOLD["detached_sigma_probe"]) > 1e-6


def test_golden_terms():
    net = GoldenNet()
    for client, wanted in GOLD["first_terms"].items():
        z = net.features(torch.tensor(WORLD["x"][int(client)])).detach()
        batch = batch_of(len(z))
        ours = [missing_spread(net.head(z).softmax(1).detach(), batch), *nearness(z, batch)]
        assert [float(each) for each in ours] == pytest.approx(wanted, abs=1e-7)


def test_the_median_is_the_lower_of_two():
    """Squared distances 1, 4, 9, 16, 36, 49."""
    assert float(nearness(torch.tensor([[0.0], [1.0], [3.0], [7.0]]), batch_of(4))[1]) == 9.0


def test_equal_features_are_finite():
    z = torch.zeros(3, 2, requires_grad=True)
    near, _ = nearness(z, batch_of(3))
    assert float(near.detach()) == 1.0
    assert torch.equal(torch.autograd.grad(near, z)[0], torch.zeros(3, 2))


@pytest.mark.parametrize("counting", [0, 1])
def test_fewer_than_two_samples_have_neither_term(counting):
    toy = world(configured("feduv"), LABELS)
    x, y = toy.samples(1)
    terms = toy.method.loss(toy.net, Batch(x, y, torch.arange(len(y)) < counting), {}).terms
    assert float(terms["variance"].detach()) == float(terms["uniformity"].detach()) == 0.0


def test_a_client_with_one_sample_makes_no_step():
    toy = world(configured("feduv"), LABELS, engine=Recording)
    toy.federation.step()
    assert {done.client: done.steps for done in toy.federation.engine.done}[2] == 0
