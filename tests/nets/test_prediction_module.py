"""A method's way to predict as a module: entries, modes, copies and dtypes are those of an ordinary module."""

import copy

import pytest
import torch
from torch import Tensor, nn

from fedloom.nets.blueprint import Bundle
from fedloom.nets.loaded_net import PredictionModule, load_tree, restore_head_bias
from fedloom.nets.net import Net
from fedloom.nets.user_model import wrap
from support import Tiny, TinyBN


def summed(net: Net, x: Tensor) -> Tensor:
    return net["a"](x) + net["b"](x) * net.extra.share  # type: ignore[index, operator]


def pair() -> Bundle:
    own = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 4))
    bundle = Bundle({"a": wrap(own, head="2"), "b": TinyBN()})
    bundle.extra = nn.Module()
    bundle.extra.share = nn.Parameter(torch.tensor(0.5))
    return bundle


def test_entries_have_the_names_of_their_authors() -> None:
    module, x = PredictionModule(pair().eval(), summed), torch.randn(6, 5)
    names = list(module.state_dict())
    assert names[:4] == ["a.0.weight", "a.0.bias", "a.2.weight", "a.2.bias"]
    assert {"b.norm.running_mean", "b.head.weight", "extra.share"} <= set(names)
    tree = {n: torch.rand_like(v) if v.is_floating_point() else v for n, v in module.state_dict().items()}
    module.load_state_dict(tree)
    by_hand = (x @ tree["a.0.weight"].T + tree["a.0.bias"]).relu() @ tree["a.2.weight"].T + tree["a.2.bias"]
    other = TinyBN().eval()
    other.load_state_dict({name.removeprefix("b."): value for name, value in tree.items() if name.startswith("b.")})
    assert torch.allclose(module(x), by_hand + other(x) * tree["extra.share"], atol=1e-6)


def test_it_is_an_ordinary_module() -> None:
    module, x = PredictionModule(pair().eval(), summed), torch.randn(6, 5)
    before = module(x)
    twin = copy.deepcopy(module).double()
    assert torch.allclose(twin(x.double()).float(), before, atol=1e-6)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(x.double()).any()
    assert torch.equal(module(x), before)
    assert not torch.equal(module.train()(x), before)  # batch norm
    module.eval()(x).sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_a_tree_is_loaded_strictly() -> None:
    net, tree = Tiny(), dict(Tiny().state_dict())
    load_tree(net, tree | {"more": torch.zeros(1)})
    assert all(torch.equal(net.state_dict()[name], tree[name]) for name in tree)
    with pytest.raises(KeyError):
        load_tree(net, {})


def test_a_bias_of_zeros_comes_back_where_there_was_one() -> None:
    net, x = Tiny(), torch.randn(3, 5)
    net.head.register_parameter("bias", None)
    before = net(x)
    restore_head_bias(net, Tiny())
    assert net.state_dict().keys() == Tiny().state_dict().keys()
    assert torch.allclose(net(x), before)
