"""A net as a function of its weights."""

import torch

from fedloom.nets.masked_batch_norm import FunctionalCall
from fedloom.nets.net import tree_of
from support import TinyBN


def test_weights_come_from_the_tree_and_buffers_in_it_move():
    net, other = TinyBN(), TinyBN()
    x, before = torch.randn(4, 5), {name: value.clone() for name, value in tree_of(net).items()}
    tree = {name: value.clone() for name, value in tree_of(other).items()}
    got = FunctionalCall(net).call(lambda bare, given: bare(given), tree, x)
    assert torch.equal(got, other(x))
    assert all(torch.equal(tree_of(net)[name], value) for name, value in before.items())
    assert torch.equal(tree["norm.running_mean"], other.norm.running_mean)
