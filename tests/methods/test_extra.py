"""What a method trains beside the net (`Method.extra`): its role, where it lives, that it travels, and every engine."""

import pytest
import torch
from torch import nn

import fedloom
from fedloom.core.records import wire_size
from fedloom.methods import register
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import OptimizerSpec, Train, cross_entropy
from fedloom.methods.contract.spec import Spec
from fedloom.nets.net import EXTRA, Role
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import CLASSES, ENGINES, Stop, TinyBN, after, alike, furthest, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0]]
NAMES = ["extra.mix.weight", "extra.mix.bias"]
HEAD, BESIDE = frozenset({Role.HEAD}), frozenset({Role.EXTRA})


class Second(nn.Module):
    """A second head, its weights drawn."""

    def __init__(self, width: int, classes: int = CLASSES) -> None:
        super().__init__()
        self.mix = nn.Linear(width, classes)
        self.drop = nn.Dropout(0.0)


class Shared(Method):
    """Two heads on the same features; the second is what the method adds."""

    phase: dict = {}  # noqa: RUF012

    def extra(self, net):
        return Second(net.head.in_features)

    def loss(self, net, batch, consts):
        z = net.features(batch.x)
        return batch.mean(cross_entropy(net.head(z) + net.extra.drop(net.extra.mix(z)), batch.y))

    def phases(self, start, ctx):
        return [Train(self.loss, ctx.task.local_epochs, **self.phase)]


class Private(Shared):
    spec = Spec(private=BESIDE)


class Apart(Shared):
    """In a bundle of two."""

    spec = Spec(nets={"one": None, "two": None}, private_nets=frozenset({"two"}))

    def loss(self, net, batch, consts):
        z = net["one"].features(batch.x)
        return batch.mean(cross_entropy(net["two"](batch.x) + net.extra.mix(z), batch.y))


@pytest.mark.parametrize("method", [Shared, Private, Apart])
def test_its_entries_have_a_role_of_their_own_and_come_last(method):
    toy = world(method(), LABELS)
    assert list(toy.task.init)[-2:] == NAMES
    assert {name for name, role in toy.task.roles.items() if role is Role.EXTRA} == set(NAMES)
    assert toy.task.names(BESIDE) == set(NAMES)
    assert EXTRA == "extra"


def test_shared_it_travels_is_averaged_and_counted():
    toy = after(world(Shared(), LABELS), 2)
    plain = after(world(Method(), LABELS), 2)
    model = toy.federation.server["model"]
    assert furthest({n: model[n] for n in NAMES}, {n: toy.task.init[n] for n in NAMES}) > 1e-3
    assert toy.federation.states == {}
    for ours, theirs in zip(toy.reports, plain.reports, strict=True):
        values = 4 * sum(model[name].numel() for name in NAMES) * len(LABELS)
        assert values < ours.bytes_up - theirs.bytes_up < values + 400 * len(LABELS)
        assert values < ours.bytes_down - theirs.bytes_down < values + 400 * len(LABELS)
    done = [toy.worker.run(toy.job(client, round_=3)).upload for client in range(3)]
    after(toy, 1)
    total = sum(upload["samples"] for upload in done)
    for name in NAMES:
        mean = sum(upload["samples"] / total * upload["model"][name].double() for upload in done)
        assert torch.allclose(toy.federation.server["model"][name].double(), mean, rtol=0, atol=1e-6)


def test_private_it_stays_with_the_client():
    toy = after(world(Private(), LABELS), 2)
    assert not set(NAMES) & set(toy.federation.server["model"])
    trees = [toy.federation.states[client]["model"] for client in range(3)]
    assert all(list(tree) == NAMES for tree in trees)
    assert furthest(trees[0], trees[1]) > 1e-3
    shared = after(world(Shared(), LABELS), 2)
    assert toy.reports[0].bytes_up < shared.reports[0].bytes_up
    payload = toy.job(0, round_=3).payload
    assert toy.reports[1].bytes_down == sum(wire_size(payload) for _ in range(3))
    ctx = toy.federation.server_context()
    assert toy.method.predictors(toy.federation.server, None, ctx) == {}
    personal = toy.method.predictors(toy.federation.server, toy.federation.states[0], ctx)["personal"]
    assert list(personal.tree) == list(toy.task.init)
    assert torch.equal(personal.tree[NAMES[0]], trees[0][NAMES[0]])


@pytest.mark.parametrize(
    ("phase", "moved"),
    [
        ({}, {*NAMES, "fc.weight", "fc.bias", "head.weight", "head.bias"}),
        ({"trains": BESIDE}, {*NAMES}),
        ({"trains": HEAD}, {"head.weight", "head.bias"}),
        ({"optimizer": {"extra": OptimizerSpec(lr=0.0)}}, {"fc.weight", "fc.bias", "head.weight", "head.bias"}),
    ],
)
def test_a_phase_may_train_it_alone_or_leave_it(phase, moved):
    method = type("Shared", (Shared,), {"phase": phase})()
    toy = after(world(method, LABELS), 1)
    model = toy.federation.server["model"]
    assert {name for name in model if not torch.equal(model[name], toy.task.init[name])} == moved


@pytest.mark.parametrize("engine", ENGINES[1:])
@pytest.mark.parametrize("method", [Shared, Private, Apart])
def test_every_engine_trains_it_alike(method, engine):
    toys = [world(method(), LABELS, net=TinyBN, epochs=2) for _ in range(2)]
    assert alike(after(toys[0], 3), after(toys[1], 3, engine), engine)


@pytest.mark.parametrize("method", [Shared, Private])
def test_it_is_kept_in_checkpoints(method, registry, tmp_path):
    @register
    class Beside(method):
        """Two heads."""

        def extra(self, net):
            return Second(net.head.in_features, net.head.out_features)

    config = parse(
        {
            "method": "beside",
            "model": "mlp",
            "scenario": {"source": "digits", "partition": "iid", "clients": 3},
            "rounds": 4,
            "checkpoint": {"seconds": 0},
            "evaluation": {"protocol": "personal/local" if method is Private else "global/global"},
            "engine": "serial",
        }
    )
    whole = run(config, out=tmp_path / "whole")
    with pytest.raises(ConnectionError):
        run(config, out=tmp_path / "cut", callbacks=[Stop(2)])
    resumed = run(config, out=tmp_path / "cut", existing="resume")
    assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]
    plain = fedloom.run(method="fedavg", model="mlp", scenario=config.scenario.build(0), rounds=4, engine="serial")
    assert (whole.numbers["bytes_up"] > plain.numbers["bytes_up"]) == (method is Shared)
    assert whole.numbers["flops"] > plain.numbers["flops"]
