"""Copies of nets whose modules hold tensors with a history."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm

from fedloom.nets.net import deep_copy


def net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def normed(module):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old one is deprecated
        weight_norm(module[0])
    return module


def pruned(module):
    prune.l1_unstructured(module[0], "weight", 0.5)
    return module


def spectral(module):
    spectral_norm(module[0])
    return module


def parametrized(module):
    parametrizations.weight_norm(module[0])
    return module


def storing(module):
    module.last = module(torch.ones(1, 4))
    return module


@pytest.mark.parametrize("change", [normed, pruned, spectral, parametrized, storing])
@pytest.mark.parametrize("used", [False, True])
def test_a_copy_computes_the_same_and_shares_nothing(change, used):
    module, x = change(net()), torch.ones(2, 4)
    if used:
        module(x).sum().backward()
    twin = deep_copy(module).eval()
    assert torch.equal(twin(x), module.eval()(x))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not torch.equal(twin(x), module(x))


def test_entries_that_were_made_in_inference_mode_train_in_the_copy():
    with torch.inference_mode():
        module = nn.BatchNorm1d(4)
    twin = deep_copy(module)
    twin(torch.randn(3, 4)).square().sum().backward()
    assert twin.weight.grad is not None
    assert int(twin.num_batches_tracked) == 1
