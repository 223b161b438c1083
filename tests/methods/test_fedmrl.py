"""FedMRL against golden numbers of two rounds, with own and with tied heads; what each head reads and moves."""

import functools

import pytest
import torch
from torch import nn

import golden_world
from fedloom.core.errors import ConfigError
from fedloom.methods import METHODS, Batch, Start
from fedloom.methods.fedmrl import own_logits
from fedloom.nets.blueprint import prepare_net
from golden_world import CLASS_KNOWLEDGE, WORLD, GoldenNet, golden_run, matches, personal, probe, refuted
from support import Tiny, configured, world

GOLD = CLASS_KNOWLEDGE["fedmrl"]
WIDTH = GOLD["options"]["small_width"]
FEDMRL = METHODS.get("fedmrl")
LABELS = [[0, 1, 2, 0, 1], [1, 1, 3], [0, 2, 3, 3]]
SMALL = [f"small.{name}" for name in GOLD["first_small"]]
OWN = [f"own.{name}" for name in WORLD["init"]]


def given(module, values):
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(torch.tensor(values[name], dtype=torch.float64))
    return module


class SmallNet(GoldenNet):
    """The golden world's small net, of fewer features."""

    def __init__(self):
        super().__init__()
        self.fc, self.head = nn.Linear(3, WIDTH).double(), nn.Linear(WIDTH, 4).double()
        given(self, GOLD["first_small"])


class Golden(FEDMRL):
    def extra(self, net):
        return given(super().extra(net), GOLD["first_map"])


@pytest.fixture
def rounds(monkeypatch):
    build = functools.partial(prepare_net, build_model=lambda name: SmallNet())
    monkeypatch.setattr(golden_world, "prepare_net", build)
    return functools.partial(golden_run, Golden, 2, small="few features")


@pytest.mark.parametrize("way", ["out", "tied_heads"])
def test_golden_rounds(rounds, way):
    federation, servers = rounds(tied_heads=way == "tied_heads")
    for number, server in enumerate(servers, 1):
        assert matches(server["model"], GOLD[way][f"round{number}"]["server"], prefix="small.")
        assert abs(probe(server["model"], SMALL) - GOLD[way][f"round{number}"]["probe"]) < 1e-7
    for client, wanted in GOLD[way]["own"].items():
        own = federation.states[int(client)]["model"]
        assert matches(own, {n.removeprefix("o."): v for n, v in wanted.items() if n[0] == "o"}, prefix="own.")
        assert matches(own, {n.removeprefix("p."): v for n, v in wanted.items() if n[0] == "p"}, prefix="extra.")
        assert abs(probe(own, [*OWN, "extra.weight", "extra.bias"]) - GOLD[way]["own_probes"][client]) < 1e-6
        tested = federation.engine.worker.net_of_client(int(client))
        tested.load(personal(federation, int(client)))
        logits = own_logits(tested.net.eval(), torch.tensor(WORLD["public"], dtype=torch.float64))
        assert matches({"": logits}, {"": GOLD[way]["logits_on_public"][client]})
    assert refuted(servers[-1]["model"], GOLD, SMALL)


def test_golden_uniform_mean(rounds):
    _, servers = rounds(weights="uniform")
    assert abs(probe(servers[-1]["model"], SMALL) - GOLD["uniform_probe"]) < 1e-7


def test_the_small_loss_does_not_reach_the_own_head():
    toy = world(configured("fedmrl"), LABELS, net=Tiny)
    terms = toy.method.loss(toy.net, Batch(toy.data.x, toy.data.y), {}).terms
    terms["ce_small"].backward()
    moved = {name for name, value in toy.net.named_parameters() if value.grad is not None and value.grad.any()}
    assert {"small.head.weight", "own.fc.weight", "small.fc.weight", "extra.weight"} <= moved
    assert not any(name.startswith("own.head") for name in moved)


def test_each_net_is_clipped_alone():
    toy = world(configured("fedmrl", clip=0.5), LABELS, net=Tiny)
    gradients = {name: torch.full_like(value, 3.0) for name, value in toy.net.named_parameters()}
    (phase,) = toy.method.phases(Start(toy.task.init, {}), toy.job(0).ctx)
    clipped = phase.grad_map(gradients, {}, {})
    for part in ("own", "small", "extra"):
        norm = torch.cat([value.flatten() for name, value in clipped.items() if name.startswith(part)]).norm()
        assert float(norm) == pytest.approx(0.5)


def test_refusals_and_findings():
    shape = (1, 2, 2)
    with pytest.raises(ConfigError, match=r"fedmrl\.small: its features have 200 entries, those of group 0 4"):
        world(configured("fedmrl", small="mlp"), LABELS, net="logistic", shape=shape)
    nested, alike = (world(configured("fedmrl", small=s), LABELS, net="mlp", shape=shape) for s in ("logistic", "mlp"))
    assert nested.method.examine([nested.task], 2) == []
    assert [found.code for found in alike.method.examine([alike.task], 2)] == ["fedmrl.not_nested"]
    with pytest.raises(ConfigError, match=r"fedmrl\.small: the small of group 1 is not that of group 0"):
        nested.method.examine([nested.task, alike.task], 2)
