"""Nets that train in bfloat16: float32 weights, features, gradients and tests, and numbers close to float32's."""

import pytest
import torch

from fedloom.core.streams import Streams
from fedloom.nets import build


@pytest.fixture(params=["lenet5", "lenet5-bn", "mlp", "resnet8"])
def net(request):
    return build(request.param, input_shape=(3, 32, 32), num_classes=10, streams=Streams(0))


def test_features_are_close_to_those_in_float32(net):
    x = torch.randn(16, 3, 32, 32)
    net.train()
    exact = net.features(x).detach()
    net.in_bfloat16 = True
    rounded = net.features(x).detach()
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    assert float((rounded - exact).norm() / exact.norm()) < 0.02


def test_tests_are_in_float32(net):
    x = torch.randn(16, 3, 32, 32)
    net.eval()
    exact = net(x)
    net.in_bfloat16 = True
    assert torch.equal(net(x), exact)
