"""Methods that say so train clients with two different nets, and each is tested with a net of its own kind."""

import pytest
import torch
from torch import nn

from fedloom.data.augment import Augmentation
from fedloom.methods import METHODS, Net
from fedloom.nets import MODELS
from fedloom.nets.blueprint import prepare_net
from support import CLASSES, after, furthest, handmade, mixed, same_bits, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0, 3]]
SHAPE = (1, 4, 4)
# The nets that these share are a model of their own; features that they compare have one width.
OPTIONS = {"fml": {"meme": "mlp-128"}, "fedkd": {"mentee": "mlp-128"}, "fedmrl": {"small": "six-features"}}
NAMES = [name for name, kind in METHODS if kind.configured("sound", {}).spec.architectures == "any"]
NAMES.remove("heterofl")  # takes several widths of one net: test_heterofl.py


class Flat(Net):
    """16 inputs -> 6 ReLU features -> C logits."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 6)
        self.head = nn.Linear(6, CLASSES)

    def features(self, x):
        return self.fc(x.flatten(1)).relu()


class Convolved(Net):
    """A convolution under batch norm -> 6 ReLU features -> C logits."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3)
        self.fc = nn.Linear(12, 6)
        self.head = nn.Linear(6, CLASSES)

    def features(self, x):
        return self.fc(self.norm(self.conv(x)).relu().flatten(1)).relu()


def registered(name):
    if name == "six-features":  # no registered model is as narrow as these
        return Flat()
    return MODELS.get(name)(input_shape=SHAPE, num_classes=CLASSES)


def test_they_are_all_here():
    expected = "fd fedclassavg feddf fedgh fedkd fedorgp fedpcl fedproto fedssa fedtgp fml lgfedavg local protonorm"
    assert set(expected.split()) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_two_architectures(name):
    """Three rounds of three in five clients: some are new in a late round."""
    method = handmade(name, **OPTIONS.get(name, {}))
    spec = method.spec
    torch.manual_seed(1)
    nets = [
        prepare_net(net(), head_bias=spec.head_bias, nets=spec.nets, extra=method.extra, build_model=registered)
        for net in (Flat, Convolved)
    ]
    federation = mixed(method, nets, LABELS, shape=SHAPE, participation=0.6, augment=Augmentation(flip=spec.views == 2))
    for _ in range(3):
        report = federation.step()
        assert all(value == value for value in report.terms.values())  # no NaN
    trained = {done.client for done in federation.engine.done}
    assert {client % 2 for client in trained} == {0, 1}
    for client in range(len(LABELS)):
        facts, ctx = federation.client_context(client, federation.round), federation.server_context(client)
        offered = method.predictors(federation.server, federation.state_of(facts), ctx)["personal"]
        task, live = federation.task_of(client), federation.engine.worker.net_of_client(client)
        assert list(offered.tree) == list(task.init)
        if client in trained and len(LABELS[client]) > 1:  # a sample under batch norm makes no step
            assert furthest(offered.tree, task.init) > 1e-4
        live.load(offered.tree)
        said = offered.logits(live.net.eval(), federation.engine.worker.data.x)
        assert said.shape == (sum(map(len, LABELS)), CLASSES)
        assert said.isfinite().all()


def test_one_architecture_is_the_special_case():
    """FedDF, whose server keeps a model for each: a list of one net is the run of that net."""
    method, net = handmade("feddf"), "mlp-128"
    toys = [world(method, LABELS, net=net, shape=SHAPE) for _ in range(2)]
    toys[1].federation = mixed(method, [toys[1].net], LABELS, shape=SHAPE)
    after(toys[0], 2)
    for _ in range(2):
        toys[1].federation.step()
    assert same_bits(*(toy.federation.server for toy in toys))
