"""Nets that are built by name: sizes, shapes, and weights that depend on the seed alone."""

import pytest
import torch
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.nets.net import Net, build, tree_of

SHAPES = [("digits-cnn", (1, 8, 8)), ("lenet5", (1, 28, 28)), ("lenet5-bn", (1, 28, 28)), ("lenet5", (3, 32, 32))]


def make(name, shape, *, seed=0, classes=10):
    return build(name, input_shape=shape, num_classes=classes, streams=Streams(seed))


@pytest.mark.parametrize(("name", "shape"), [("digits-cnn", (3, 5, 7)), ("digits-cnn", (1, 4, 4))])
@pytest.mark.parametrize("batch", [1, 2])
def test_small_and_odd_images_fit_the_digits_net(name, shape, batch):
    assert make(name, shape)(torch.randn(batch, *shape)).shape == (batch, 10)


@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 28, 28), (1, 16, 40), (1, 28, 20)])
def test_other_images_fit_lenet(shape):
    assert make("lenet5", shape)(torch.randn(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize("name", ["digits-cnn", "lenet5", "lenet5-bn"])
@pytest.mark.parametrize("shape", [(), (64,), (28, 28), (1, 28, 2), (1, 2, 28), (1, 1, 28, 28)], ids=str)
def test_inputs_that_do_not_fit_are_refused_with_their_shape(name, shape):
    with pytest.raises(ConfigError, match=r"needs images \[c, h, w\] of at least \d+x\d+ pixels") as caught:
        make(name, shape)
    assert str(shape) in str(caught.value)


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_equal_seeds_give_equal_weights_and_others_do_not(name, shape):
    first, again, other = (make(name, shape, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_the_tree_of_a_net_is_its_live_tensors():
    net = make("lenet5-bn", (1, 28, 28))
    tree = tree_of(net)
    assert list(tree) == list(net.state_dict())
    tree["head.bias"].fill_(7)
    assert net.head.bias.tolist() == [7.0] * 10
    assert not tree["head.bias"].requires_grad


def test_a_net_without_features_says_so():
    class Unfinished(Net):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(1, 2)

    with pytest.raises(TypeError, match=r"Unfinished defines no features\(x\)"):
        Unfinished()(torch.zeros(1))
