"""Inputs from uploads: exact from a linear layer, and by search where the answer is known; membership from losses."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, mse_loss

from benchmarks.attacks import best_psnr, inputs_of_linear_layer, invert_features, invert_gradient, membership_auc, psnr
from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.nets.net import tree_of
from support import Through, Tiny


def sample(n, seed=0):
    return torch.randn(n, 5, generator=torch.Generator().manual_seed(seed))


def fixed():
    """The toy net, with the same weights in every test."""
    with Streams(0).isolated("init"):
        return Tiny()


def gradient_of(net, x, y):
    names = [name for name, _ in net.named_parameters()]
    return dict(zip(names, torch.autograd.grad(cross_entropy(net(x), y), list(net.parameters())), strict=True))


def test_one_sample_is_recovered_exactly_from_the_first_layer():
    net, x = fixed(), sample(1)
    gradient = gradient_of(net, x, torch.tensor([2]))
    found = inputs_of_linear_layer(gradient["fc.weight"], gradient["fc.bias"])
    assert len(found) >= 1
    assert torch.allclose(found, x.double().expand_as(found), rtol=0, atol=1e-4)
    assert best_psnr(found, x, 2.0) > 60


def test_of_a_batch_each_unit_gives_a_weighted_mean():
    """Two samples, one linear unit, squared error: the weights are the residuals."""
    weight, x, y = torch.tensor([[0.0, 0.0]], requires_grad=True), torch.tensor([[1.0, 0.0], [0.0, 2.0]]), [3.0, 1.0]
    bias = torch.zeros(1, requires_grad=True)
    loss = mse_loss((x @ weight.T + bias)[:, 0], torch.tensor(y))
    found = inputs_of_linear_layer(*torch.autograd.grad(loss, [weight, bias]))
    assert found.tolist() == [pytest.approx([3 / 4, 2 / 4])]  # (3 x1 + 1 x2) / 4


def test_a_search_finds_the_sample_whose_gradient_is_given():
    """Without a bias, and so without an exact answer by division: the gradient is (p - e_y) x^T."""
    net, x, y = Through(sample(4, 7) / 4), sample(1, 4), torch.tensor([1])
    start = tree_of(net)
    found = invert_gradient(net, start, gradient_of(net, x, y), y, (5,), rng=np.random.default_rng(0), steps=200)
    of_found, given = (gradient_of(net, one, y)["head.weight"].flatten() for one in (found, x))
    assert float(torch.cosine_similarity(of_found, given, dim=0)) > 0.999
    assert float(torch.cosine_similarity(found, x)) > 0.98


def test_a_gradient_of_no_parameter_is_refused():
    net = fixed()
    with pytest.raises(ConfigError, match="a gradient of other: no parameter of the net is in it"):
        invert_gradient(
            net, tree_of(net), {"other": torch.ones(2)}, torch.tensor([1]), (5,), rng=np.random.default_rng(0)
        )


def test_features_of_an_invertible_map_give_the_input():
    net = fixed()
    with torch.no_grad():
        net.fc.weight.copy_(torch.cat([torch.eye(5), torch.ones(1, 5)]))
        net.fc.bias.fill_(9.0)  # no unit is off near these inputs
    x = sample(3, 1)
    found = invert_features(net, tree_of(net), net.features(x).detach(), (5,), rng=np.random.default_rng(0), steps=300)
    assert torch.allclose(found, x, rtol=0, atol=0.05)


def test_psnr():
    assert psnr(torch.zeros(4), torch.full((4,), 0.1), 1.0) == pytest.approx(20)  # 10 log10(1 / 0.01)
    assert psnr(torch.ones(4), torch.ones(4), 1.0) == math.inf
    candidates = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    assert best_psnr(candidates, torch.tensor([[0.1, 0.1], [1.0, 1.0]]), 1.0) == pytest.approx((20 + 99) / 2)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_guess_that_is_no_number_is_the_worst_and_not_a_perfect_one(wrong):
    guess = torch.tensor([0.5, wrong])
    assert psnr(guess, torch.zeros(2), 1.0) == -math.inf
    candidates = torch.stack([guess, torch.full((2,), 0.1)])
    assert best_psnr(candidates, torch.zeros(1, 2), 1.0) == pytest.approx(20)


@pytest.mark.parametrize(
    ("members", "others", "area"),
    [
        ([0.1, 0.2], [0.3, 0.4], 1.0),
        ([0.3, 0.4], [0.1, 0.2], 0.0),
        ([0.1, 0.3], [0.2, 0.4], 3 / 4),
        ([1.0, 1.0], [1.0], 0.5),
        ([0.0, 1.0], [0.0, float("nan")], (1.5 + 1) / 4),
    ],
)
def test_the_area_by_hand(members, others, area):
    assert membership_auc(torch.tensor(members), torch.tensor(others)) == pytest.approx(area)


def test_without_samples_there_is_no_area():
    with pytest.raises(ConfigError, match="0 members and 1 others"):
        membership_auc(torch.zeros(0), torch.zeros(1))
