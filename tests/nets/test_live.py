"""A net in memory whose weights are exchanged in place."""

import torch
from torch import nn

from fedloom.nets.live import Live
from fedloom.nets.net import Net, tree_of


class Volumes(Net):
    """Convolutions of two and of three dimensions: only the first have the order channels last."""

    def __init__(self):
        super().__init__()
        self.flat, self.deep, self.head = nn.Conv2d(3, 4, 3), nn.Conv3d(1, 2, 3), nn.Linear(4, 2)


def test_weights_of_plane_convolutions_lie_channels_last_and_come_back_in_the_plain_order():
    net = Volumes()
    before = {name: value.clone() for name, value in tree_of(net).items()}
    live = Live(net)
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
    Live(net)
    assert net.flat.weight.stride() == (9, 1, 3, 1)


def test_a_net_may_keep_the_plain_order():
    class Plain(Volumes):
        channels_last = False

    net = Plain()
    assert not Live(net).tree["flat.weight"].is_contiguous(memory_format=torch.channels_last)


def test_nets_with_own_kernels_keep_the_plain_order_whatever_they_had():
    net = Volumes()
    Live(net)
    net.channels_last = False  # as `Speedups.prepare` leaves it
    Live(net)
    assert net.flat.weight.is_contiguous()
