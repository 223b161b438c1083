"""Models that come as Python objects."""

import functools
import pickle
import threading

import pytest
import torch
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import tree_of
from fedloom.nets.user_model import UserModel, model_digest
from support import Tiny, same_tree

SHAPE, CLASSES = (1, 4, 4), 3
FACTS = {"input_shape": SHAPE, "num_classes": CLASSES}


def perceptron(input_shape, num_classes, width=6):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, width), nn.ReLU(), nn.Linear(width, num_classes))


def blueprint(source, head="3"):
    return Blueprint("own", SHAPE, CLASSES, {"head": head}, factory=UserModel(source))


def test_a_module_is_copied_with_its_weights_whatever_the_seed():
    module = perceptron(**FACTS)
    first, second = (blueprint(module).build(Streams(seed)) for seed in (0, 1))
    assert same_tree(tree_of(first), tree_of(second))
    assert torch.equal(first.head.weight, module[3].weight)
    with torch.no_grad():
        first.head.weight.zero_()
    assert module[3].weight.abs().sum() > 0
    with pytest.raises(ConfigError, match=r"model own: every client would draw weights .* give a function"):
        blueprint(module).initial_weights(Streams(0), 1)


def test_a_function_draws_from_the_runs_stream():
    plan = blueprint(perceptron)
    first, again, other = (tree_of(plan.build(Streams(seed))) for seed in (0, 0, 1))
    assert same_tree(first, again)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert not torch.equal(plan.initial_weights(Streams(0), 1)["head.weight"], first["head.weight"])


@pytest.mark.parametrize(
    "source",
    [
        perceptron,
        functools.partial(perceptron, width=6),
        lambda num_classes: perceptron(SHAPE, num_classes),
        lambda: perceptron(SHAPE, CLASSES),
        lambda **others: perceptron(SHAPE, CLASSES, **others),
    ],
    ids=["both", "partial", "classes", "neither", "others"],
)
def test_a_function_is_told_what_it_names(source):
    assert [len(p) for p in UserModel(source).module(**FACTS).parameters()] == [6, 6, 3, 3]


def test_a_net_is_taken_as_it_is():
    assert isinstance(UserModel(Tiny)(**FACTS), Tiny)
    assert isinstance(UserModel(Tiny(CLASSES))(**FACTS), Tiny)


def broken():
    raise RuntimeError("no weights\nin the cellar")


REFUSED = {
    "what it asks for is not offered": (lambda depth: None, "model <lambda>: it cannot be made .*: TypeError: .*depth"),
    "its own error": (broken, "model broken: it cannot be made .*: RuntimeError: no weights$"),
    "no module": (lambda: 3, "model <lambda>: need a torch.nn.Module, or what makes one, got <class 'int'>"),
    "no sizes": (lambda: nn.LazyLinear(3), "model <lambda>: it has lazy layers without sizes"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_module_is_refused_in_one_line(case):
    source, why = REFUSED[case]
    with pytest.raises(ConfigError, match=why) as caught:
        UserModel(source).module(**FACTS)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_copied_is_refused():
    module = perceptron(**FACTS)
    module.lock = threading.Lock()
    with pytest.raises(ConfigError, match="model Sequential: it cannot be copied: TypeError"):
        UserModel(module).module(**FACTS)


def test_a_module_that_holds_what_autograd_made_is_copied():
    module = perceptron(**FACTS)
    module.cache = module[1].weight * 2
    twin = UserModel(module).module(**FACTS)
    assert torch.equal(twin.cache, module.cache)
    assert twin.cache.is_leaf


def test_it_goes_to_other_processes_and_what_cannot_says_so_when_it_is_asked():
    sent = pickle.loads(pickle.dumps(UserModel(perceptron)))  # noqa: S301
    assert len(list(sent.module(**FACTS).parameters())) == 4
    stayed = pickle.loads(pickle.dumps(UserModel(lambda: perceptron(**FACTS))))  # noqa: S301
    with pytest.raises(ConfigError, match="model <lambda>: it cannot be sent to another process"):
        stayed.module(**FACTS)


def changed(change):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5), nn.BatchNorm1d(2))
    change(module)
    return model_digest(module)


CHANGES = {
    "a weight": lambda m: m[0].weight.data[0, 0].add_(1),
    "a buffer": lambda m: m[2].running_mean.add_(1),
    "a rate of dropout": lambda m: setattr(m[1], "p", 0.4),
    "what is frozen": lambda m: m[0].weight.requires_grad_(False),
    "a dtype": lambda m: m.double(),
    "a layer without entries": lambda m: m.append(nn.ReLU()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_digest_changes_with(change):
    assert changed(CHANGES[change]) != changed(lambda m: None)


def test_a_digest_is_that_of_values_not_of_places():
    first, second = (nn.Linear(2, 2) for _ in range(2))
    second.load_state_dict(first.state_dict())
    for module in (first, second):
        module.extra_repr = lambda: str(object())
    assert model_digest(first) == model_digest(second)
