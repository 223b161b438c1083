"""Whether a module classifies, and where its head is."""

import pytest
import torch
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.nets.probe import check_classifies, find_head
from fedloom.nets.user_model import HeadlessNet, class_name, wrap

X = torch.linspace(-1, 1, 10).view(2, 5)
CLASSES = 3


def module(forward, **layers):
    """A module of some layers, which computes `forward(itself, x)`."""
    made = type("Own", (nn.Module,), {"forward": forward})()
    for name, layer in layers.items():
        made.add_module(name, layer)
    return made


def two_layers(forward):
    return module(forward, last=nn.Linear(4, CLASSES), body=nn.Linear(5, 4))


def caught(self, x):
    try:
        return self.last(self.body(x))
    except Exception:
        return torch.zeros(len(x), CLASSES)


HEADS = {
    "the last to be called, wherever it was defined": (two_layers(lambda m, x: m.last(m.body(x).relu())), "last"),
    "inside others": (nn.Sequential(nn.Linear(5, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, CLASSES))), "1.1"),
    "nothing, as softmax follows": (nn.Sequential(nn.Linear(5, CLASSES), nn.Softmax(1)), None),
    "nothing, as there is no linear layer": (
        module(lambda m, x: x[:, :CLASSES] * m.scale.weight, scale=nn.PReLU()),
        None,
    ),
    "nothing, as the module is the layer": (nn.Linear(5, CLASSES), None),
    "nothing, as it is called twice": (module(lambda m, x: m.last(m.last(x)), last=nn.Linear(5, 5)), None),
    "nothing, as it cannot be cut there": (two_layers(caught), None),
}


@pytest.mark.parametrize("case", HEADS)
def test_the_head_is(case):
    net, expected = HEADS[case]
    assert find_head(net, X) == expected


def test_looking_leaves_no_trace():
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, CLASSES))
    net[1].eval()
    before, drawn = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    assert find_head(net, X) == "3"
    check_classifies(net, X, CLASSES, "own")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (net.training, net[1].training, net[2].training) == (True, False, True)
    assert not any(layer._forward_hooks for layer in net)


REFUSED = {
    "one number a sample": (nn.Linear(5, 1), r"\[2, 1\], expected \[2, 3\]: .* is regression, and is not trained here"),
    "no axis of classes": (nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)), r"\[2\], expected .* regression"),
    "other classes": (nn.Linear(5, 7), "it has 7 outputs, the scenario 3 classes"),
    "one label a token": (nn.Sequential(nn.Linear(5, 12), nn.Unflatten(1, (4, 3))), "one label for each sample"),
    "a dictionary": (
        module(lambda m, x: {"boxes": m.a(x)}, a=nn.Linear(5, 3)),
        "gives a dict: a classifier gives logits",
    ),
    "labels": (
        module(lambda m, x: m.a(x).argmax(1), a=nn.Linear(5, 3)),
        "gives torch.int64: a classifier gives logits",
    ),
    "other samples": (
        nn.Linear(8, 3),
        r"does not take the scenario's samples of shape \(5,\) \(float32\): RuntimeError",
    ),
    "nothing that trains": (nn.Linear(5, 3).requires_grad_(False), "nothing in it trains"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_classifier_is_refused_in_one_line(case):
    net, why = REFUSED[case]
    with pytest.raises(ConfigError, match=f"model own.*{why}") as caught:
        check_classifies(net, X, CLASSES, "own")
    assert "\n" not in str(caught.value)


def test_a_module_without_a_head_has_logits_and_no_features():
    body = nn.Sequential(nn.Linear(5, CLASSES), nn.Softmax(1))
    net = HeadlessNet(body)
    assert torch.equal(net(X), body(X))
    assert set(map(str, net.roles().values())) == {"body"}
    with pytest.raises(ConfigError, match="Sequential has no linear layer at its end"):
        net.features(X)


def test_it_is_called_as_the_module_that_it_wraps():
    body = nn.Sequential(nn.Linear(5, CLASSES))
    assert [class_name(net) for net in (body, HeadlessNet(body), wrap(body, "0"))] == ["Sequential"] * 3
