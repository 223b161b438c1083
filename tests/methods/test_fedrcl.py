"""FedRCL: golden numbers of one level, pairs by hand, several levels.

The golden numbers are those of the released code's pairs, which every preset has; they have no part for the paper's
(all positives and negatives), which the library does not offer.
"""

import math

import pytest
import torch

import golden_world
from fedloom.methods.contract.phases import Batch, OptimizerSpec
from fedloom.methods.fedrcl import FedRCL, relaxed_contrast
from golden_world import GOLDEN, WORLD, GoldenNet, golden_run, refuted, rounds_match
from support import after, configured, world

GOLD = GOLDEN["fedrcl"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]


class BeforeReLU(GoldenNet):
    """The golden net, whose one level lies before the ReLU."""

    def levels(self, x):
        h = x.double().mul(100).round().div(100) @ self.fc.weight.T + self.fc.bias
        return (h,), h.relu()


def test_golden(monkeypatch):
    monkeypatch.setattr(golden_world, "GoldenNet", BeforeReLU)
    _, servers = golden_run(FedRCL, rounds=2, **GOLD["options"])
    assert rounds_match(servers, GOLD["out"])
    assert refuted(servers[1]["model"], GOLD)
    for client, wanted in GOLD["first_contrast_and_penalty"].items():
        x, y = (torch.tensor(WORLD[name][int(client)]) for name in "xy")
        (level,), _ = BeforeReLU().levels(x)
        found = relaxed_contrast(level, Batch(x, y), GOLD["options"]["tau"], GOLD["options"]["threshold"])
        assert [float(each.detach().mean()) for each in found] == pytest.approx(wanted, abs=1e-7)


def angles(*degrees):
    radians = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return 3 * torch.stack([radians.cos(), radians.sin()], 1)


def test_pairs_by_hand():
    """Two of class 0, 60 degrees apart; one of class 1; two of class 2, 20 degrees apart."""
    batch = Batch(torch.zeros(5, 1), torch.tensor([0, 0, 1, 2, 2]))
    contrast, penalty = relaxed_contrast(angles(0, 60, 90, 170, 190), batch, 0.5, 0.7)
    cosine = {a: math.cos(math.radians(a)) for a in (20, 60, 90, 110, 130, 170, 190)}
    p, n1, n2 = (math.exp(v / 0.5) for v in (cosine[60], cosine[90], cosine[170]))
    assert float(contrast[0]) == pytest.approx(-math.log(p / (p + n1 + n2)))
    alone, n1, n2 = (math.exp(v / 0.5) for v in (1.0, math.cos(math.radians(30)), math.cos(math.radians(80))))
    assert float(contrast[2]) == pytest.approx(-math.log(alone / (alone + n1 + n2)))
    near = [math.log(1 + math.exp((v - 1) / 0.5)) for v in (-1.0, cosine[20])]
    assert penalty.tolist() == pytest.approx([near[0], near[0], near[0], near[1], near[1]])


def test_padded_rows_are_no_partners():
    y = torch.tensor([0, 1, 0, 1])
    z, junk = angles(10, 50, 35, 120), angles(200, 12, 55)
    whole = relaxed_contrast(z, Batch(z, y), 0.05, 0.7)
    padded = Batch(torch.zeros(7, 1), torch.cat([y, torch.tensor([0, 0, 1])]), torch.tensor([True] * 4 + [False] * 3))
    for ours, wanted in zip(relaxed_contrast(torch.cat([z, junk]), padded, 0.05, 0.7), whole, strict=True):
        assert torch.allclose(ours[:4], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("engine", ["serial", "stacked"])
def test_a_batch_of_one_trains_on_cross_entropy_alone(engine):
    """Five samples in batches of four, and a client of a single sample."""
    labels, slow = [[0, 1, 2, 1, 3], [2]], OptimizerSpec(lr=0.001)
    toy = after(world(configured("fedrcl"), labels, optimizer=slow), 2, engine)
    assert [report.steps for report in toy.reports] == [3, 3]
    assert all(math.isfinite(value) for report in toy.reports for value in report.terms.values())
    x, y = toy.samples(1)
    out = toy.method.loss(toy.net, Batch(x, y), {})
    one, plain = (
        torch.autograd.grad(loss, list(toy.net.parameters()), retain_graph=True)
        for loss in (out.total, out.terms["ce"])
    )
    assert all(torch.allclose(a, b, rtol=0, atol=1e-6) for a, b in zip(one, plain, strict=True))


@pytest.mark.parametrize("labels", [[2], [1, 1]])
def test_batches_without_negatives_are_finite(labels):
    toy = world(configured("fedrcl"), LABELS)
    x = torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(1))
    out = toy.method.loss(toy.net, Batch(x, torch.tensor(labels)), {})
    gradients = torch.autograd.grad(out.total, list(toy.net.parameters()))
    assert float(out.terms["contrast"].detach()) == pytest.approx(0, abs=1e-6)
    assert all(g.isfinite().all() for g in gradients)


def test_a_residual_net_has_a_level_for_the_stem_and_each_stage():
    toy = world(configured("fedrcl"), [[0, 1, 1, 0], [2, 3, 2]], net="resnet8", shape=(3, 8, 8))
    x, y = toy.samples(0)
    net = toy.net.eval()
    levels, z = net.levels(x)
    assert [tuple(level.shape[1:]) for level in levels] == [(64, 8, 8), (64, 8, 8), (128, 4, 4), (256, 2, 2)]
    assert all(float(level.detach().min()) < 0 for level in levels)
    assert torch.allclose(z, net.features(x), atol=1e-6)
    terms = toy.method.loss(net, Batch(x, y), {}).terms
    each = [relaxed_contrast(level.mean((2, 3)), Batch(x, y), 0.05, 0.7) for level in levels]
    for name, kind in zip(("contrast", "penalty"), zip(*each, strict=True), strict=True):
        wanted = torch.stack([values.mean() for values in kind]).mean()
        assert float(terms[name].detach()) == pytest.approx(float(wanted.detach()), rel=1e-4)
