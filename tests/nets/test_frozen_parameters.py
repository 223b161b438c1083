"""Frozen parameters that leave the tree and stay in the net."""

import copy

import torch
from torch import nn

from fedloom.nets.loaded_net import freeze_as_buffers, frozen_parameters
from fedloom.nets.net import Role, tree_of
from support import TinyAdapter


def test_the_net_computes_the_same_and_its_tree_has_what_trains_and_all_buffers():
    net, x = TinyAdapter().eval(), torch.randn(3, 5)
    before, out = tree_of(net), net(x)
    freeze_as_buffers(net, persistent=False)
    assert list(tree_of(net)) == [name for name in before if not name.startswith("fc.")]
    assert list(net.roles()) == list(tree_of(net))
    assert net.roles()["norm.running_mean"] == Role.BN_STAT
    assert torch.equal(net(x), out)
    assert not any(name.startswith("fc.") for name, _ in net.named_parameters())
    assert {n: v.data_ptr() for n, v in frozen_parameters(net).items()} == {
        n: before[n].data_ptr() for n in ("fc.weight", "fc.bias")
    }


def test_they_travel_as_buffers_with_the_roles_that_they_had():
    net = TinyAdapter()
    net.norm.requires_grad_(False)
    roles, before = net.roles(), {name: value.clone() for name, value in tree_of(net).items()}
    freeze_as_buffers(net, persistent=True)
    assert net.roles() == roles
    assert {name for name, _ in net.named_parameters()} == {"down.weight", "up.weight", "head.weight", "head.bias"}
    assert set(frozen_parameters(net)) == {"fc.weight", "fc.bias", "norm.weight", "norm.bias"}
    again = TinyAdapter()
    again.load_state_dict(net.state_dict())
    assert all(torch.equal(value, before[name]) for name, value in tree_of(again).items())


def test_a_copy_has_copies_of_them():
    net = TinyAdapter().eval()
    freeze_as_buffers(net, persistent=False)
    twin, x = copy.deepcopy(net), torch.randn(3, 5)
    assert torch.equal(twin(x), net(x))
    with torch.no_grad():
        twin.fc.weight.zero_()
    assert not torch.equal(twin(x), net(x))


def test_a_net_in_which_everything_trains_is_as_it_was():
    net = TinyAdapter().requires_grad_(True)
    names = list(tree_of(net))
    freeze_as_buffers(net, persistent=False)
    assert list(tree_of(net)) == names
    assert not frozen_parameters(net)


def test_recurrent_layers_go_on_with_theirs():
    net = nn.GRU(3, 4)
    net.weight_ih_l0.requires_grad_(False)
    x = torch.randn(2, 1, 3)
    expected, _ = net(x)
    freeze_as_buffers(net, persistent=False)
    assert "weight_ih_l0" not in net.state_dict()
    assert torch.equal(net(x)[0], expected)
    assert torch.equal(copy.deepcopy(net)(x)[0], expected)
    net.weight_ih_l0.data.zero_()
    assert not torch.equal(net(x)[0], expected)
