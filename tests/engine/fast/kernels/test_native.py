"""Which operators are the project's own, and which stay torch's."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, max_pool2d

from fedloom.core.streams import Streams
from fedloom.engine.fast.kernels.compiling import compiler
from fedloom.engine.fast.kernels.operators import OwnKernels, benefits
from fedloom.engine.speedups import Speedups
from fedloom.nets import build
from support import Called

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def called(function, *inputs):
    with Called() as calls, OwnKernels():
        got = function(*inputs)
    assert torch.allclose(got, function(*inputs), rtol=1e-4, atol=1e-5)
    return [name for name in calls.names if "conv" in name or "pool" in name]


IMAGES, WEIGHT, BIAS = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4)
OWN = ["fedloom.convolution.default"]


@pytest.mark.parametrize(
    "named",
    [{}, {"padding": 1}, {"padding": (0, 2)}, {"stride": 1, "dilation": (1, 1)}, {"stride": (1, 1), "groups": 1}],
    ids=str,
)
def test_convolutions_that_are_known(named):
    assert called(lambda x: conv2d(x, WEIGHT, BIAS, **named), IMAGES) == OWN
    assert called(lambda x: torch.conv2d(x, WEIGHT, **named), IMAGES) == OWN


@pytest.mark.parametrize(
    "named",
    [{"padding": "same"}, {"padding": 3}, {"stride": 2}, {"stride": (1, 2)}, {"dilation": 2}, {"padding": (0, 3)}],
    ids=str,
)
def test_convolutions_that_are_torchs(named):
    assert "fedloom" not in "".join(called(lambda x: conv2d(x, WEIGHT, BIAS, **named), IMAGES))


@pytest.mark.parametrize(
    ("x", "weight"),
    [
        (IMAGES.double(), WEIGHT.double()),
        (IMAGES[0], WEIGHT),
        (torch.randn(1, 16, 8, 8), torch.randn(4, 16, 3, 3)),
        (torch.randn(1, 3, 8, 8), torch.randn(96, 3, 3, 3)),
        (torch.randn(1, 1, 70, 8), torch.randn(2, 1, 3, 3)),
        (torch.randn(1, 1, 20, 20), torch.randn(2, 1, 9, 9)),
    ],
)
def test_tensors_that_are_torchs(x, weight):
    assert "fedloom" not in "".join(called(lambda x: conv2d(x, weight), x))


def test_groups_are_torchs():
    weight = torch.randn(6, 1, 3, 3)
    assert "fedloom" not in "".join(called(lambda x: conv2d(x, weight, groups=3), IMAGES))


@pytest.mark.parametrize(
    ("pool", "own"),
    [
        (lambda x: max_pool2d(x, 2), True),
        (lambda x: max_pool2d(x, (2, 2), stride=2), True),
        (lambda x: torch.max_pool2d(x, 2), True),
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d(2, stride=2), True),
        (nn.MaxPool2d(3), False),
        (nn.MaxPool2d(2, stride=1), False),
        (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d((2, 1)), False),
        (lambda x: max_pool2d(x, 2, return_indices=True)[0], False),
        (lambda x: max_pool2d(x.double(), 2), False),
        (nn.AvgPool2d(2), False),
    ],
)
def test_poolings(pool, own):
    assert ("fedloom.max_pool2.default" in called(pool, IMAGES)) == own


def test_errors_are_torchs():
    for bias in (BIAS.double(), torch.randn(5)):
        with OwnKernels(), pytest.raises(RuntimeError, match="bias"):
            conv2d(IMAGES, WEIGHT, bias)
    with OwnKernels(), pytest.raises(RuntimeError, match="channels"):
        conv2d(torch.randn(2, 5, 8, 8), WEIGHT)
    with OwnKernels(), pytest.raises(RuntimeError, match="Kernel size can't be greater"):
        conv2d(torch.randn(2, 3, 2, 2), WEIGHT)


@pytest.mark.parametrize(("name", "gains"), [("lenet5", True), ("lenet5-bn", True), ("mlp-128", False)])
def test_nets_that_gain(name, gains):
    assert benefits(build(name, input_shape=(1, 28, 28), num_classes=10, streams=Streams(0))) == gains


def test_a_net_takes_them_in_training_and_in_tests():
    net = build("lenet5", input_shape=(1, 28, 28), num_classes=10, streams=Streams(0))
    Speedups(kernels=True).prepare(net)
    x = torch.randn(2, 1, 28, 28)
    for training in (True, False):
        net.train(training)
        with Called() as calls:
            net(x)
        assert calls.names.count("fedloom.convolution.default") == 2
