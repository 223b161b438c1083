"""Operators of tests have torch's bits."""

import math

import pytest
import torch
from torch.nn.functional import batch_norm, max_pool2d

from fedloom.core.streams import Streams
from fedloom.engine.fast.kernels.operators import InferenceKernels, _is_exact
from fedloom.engine.speedups import Speedups
from fedloom.nets import build
from support import Called

SHAPES = [(4, 6, 28, 28), (3, 10, 12, 12), (2, 3, 5, 7), (1, 20, 4, 4), (5, 16, 10, 10), (1, 1, 3, 3), (2, 7, 2, 2)]


def images(shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(memory_format=torch.channels_last)


def with_and_without(function):
    with torch.no_grad():
        expected = function()
        with InferenceKernels():
            return function(), expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm(shape):
    x = images(shape)
    mean, variance, weight, bias = torch.rand(4, shape[1], generator=torch.Generator().manual_seed(2))
    result, expected = with_and_without(lambda: batch_norm(x, mean, variance, weight, bias, eps=1e-3))
    assert torch.equal(result, expected)
    assert _is_exact()


@pytest.mark.parametrize("order", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maxima(shape, order):
    x = images(shape).contiguous(memory_format=order)
    x[0, 0, 0, 0], x[-1, -1, 1, 1] = math.nan, math.inf
    result, expected = with_and_without(lambda: max_pool2d(x, 2))
    assert result.stride() == expected.stride() or x.is_contiguous()
    assert result.shape == expected.shape
    assert torch.equal(result.nan_to_num(9.0, 8.0), expected.nan_to_num(9.0, 8.0))


@pytest.mark.parametrize("name", ["lenet5-bn", "digits-cnn", "resnet8"])
def test_a_net_in_evaluation_has_the_same_logits(name):
    shape = (3, 32, 32) if name == "resnet8" else (1, 28, 28)
    net = build(name, input_shape=shape, num_classes=10, streams=Streams(0)).eval()
    if net.channels_last:
        net = net.to(memory_format=torch.channels_last)
    x = torch.randn(6, *shape)
    with torch.no_grad():
        expected = net(x)
        Speedups().prepare(net)
        assert torch.equal(net(x), expected)
        Speedups(steps=False).prepare(net)
        assert net.test_context is None


def test_training_and_other_windows_are_left_to_torch():
    x = images((4, 6, 8, 8)).requires_grad_()
    for function in (lambda: max_pool2d(x, 2), lambda: max_pool2d(x.detach(), 3, 2)):
        with InferenceKernels(), Called() as calls:
            function()
        assert "aten.maximum.default" not in calls.names
    with torch.no_grad(), InferenceKernels(), Called() as calls:
        max_pool2d(x, 2)
    assert "aten.maximum.default" in calls.names
