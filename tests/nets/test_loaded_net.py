"""A net in memory whose weights are exchanged in place."""

import pytest
import torch
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net, tree_of


class Volumes(Net):
    """Convolutions of two and of three dimensions: only the first have the order channels last."""

    def __init__(self):
        super().__init__()
        self.flat, self.deep, self.head = nn.Conv2d(3, 4, 3), nn.Conv3d(1, 2, 3), nn.Linear(4, 2)


def test_weights_of_plane_convolutions_lie_channels_last_and_come_back_in_the_plain_order():
    net = Volumes()
    before = {name: value.clone() for name, value in tree_of(net).items()}
    live = LoadedNet(net)
    assert net.flat.weight.is_contiguous(memory_format=torch.channels_last)
    assert live.tree["flat.weight"].data_ptr() == net.flat.weight.data_ptr()
    weights = live.weights()
    assert all(value.is_contiguous() and torch.equal(value, before[name]) for name, value in weights.items())
    live.load({name: value + 1 for name, value in before.items()})
    assert torch.equal(net.flat.weight, before["flat.weight"] + 1)


def test_weights_of_one_channel_have_the_strides_of_channels_last():
    """They count as contiguous in both orders; convolutions compute in the order that the strides say."""
    net = Volumes()
    net.flat = nn.Conv2d(1, 4, 3)
    LoadedNet(net)
    assert net.flat.weight.stride() == (9, 1, 3, 1)


def test_a_net_may_keep_the_plain_order():
    class Plain(Volumes):
        channels_last = False

    net = Plain()
    assert not LoadedNet(net).tree["flat.weight"].is_contiguous(memory_format=torch.channels_last)


def test_nets_with_own_kernels_keep_the_plain_order_whatever_they_had():
    net = Volumes()
    LoadedNet(net)
    net.channels_last = False  # as `Speedups.prepare` leaves it
    LoadedNet(net)
    assert net.flat.weight.is_contiguous()


class Averages(Net):
    """A buffer that is replaced in every pass in training, and one that moves in place."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))

    def features(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + x.mean(0)
            self.passes += 1
        return x - self.mean


def test_values_of_buffers_that_a_net_replaces_are_sent_and_received():
    net = Averages()
    live = LoadedNet(net)
    first = live.weights()
    net(torch.ones(2, 3))
    assert live.weights()["mean"].tolist() == [1, 1, 1]
    assert live.tree["mean"].data_ptr() == net.mean.data_ptr()
    net(torch.ones(2, 3))
    live.load(first)
    assert net.mean.tolist() == [0, 0, 0]
    net(torch.ones(2, 3))
    assert live.weights()["mean"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("replacement", [torch.zeros(4), torch.zeros(3, dtype=torch.float64), None])
def test_a_buffer_that_changes_its_shape_or_dtype_is_named(replacement):
    net = Averages()
    live = LoadedNet(net)
    net.mean = replacement
    with pytest.raises(ConfigError, match=r"buffer mean: the model replaces \[3\] of torch.float32 by") as caught:
        live.weights()
    assert "\n" not in str(caught.value)
