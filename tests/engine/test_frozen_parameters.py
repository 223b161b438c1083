"""Frozen parameters and adapters: what is frozen stays, on every engine, and travels only if it is asked to."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedloom.core.records import wire_size
from fedloom.core.streams import Streams
from fedloom.engine.stacked import obstacle
from fedloom.methods import METHODS
from fedloom.methods.fedavg import FedAvg
from fedloom.nets.loaded_net import freeze_as_buffers
from fedloom.nets.net import Net, tree_of
from support import (
    ENGINES,
    ROW_METHODS,
    STEEP,
    TinyAdapter,
    after,
    configured,
    furthest,
    same_on,
    same_tree,
    sampled,
    world,
)

LABELS = [[0, 1, 2, 0, 1], [1, 1, 2, 3, 3, 0, 1, 2], [2, 3, 2, 1, 0, 2, 2, 2, 1]]  # no batch of 3: perfedavg halves it
FROZEN = {"fc.weight", "fc.bias"}
TRAINED = {"down.weight", "up.weight", "norm.weight", "norm.bias", "head.weight", "head.bias"}
STATISTICS = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def lean() -> Net:
    """`TinyAdapter` as with `share: trainable`."""
    net = TinyAdapter()
    freeze_as_buffers(net, persistent=False)
    return net


def made(name="fedavg", net=TinyAdapter, labels=LABELS, **keys):
    return world(configured(name), labels, net=net, epochs=2, **keys)


def final(toy):
    """All trees that a federation ends with: the server's, and those of its clients."""
    states = [toy.federation.server, *toy.federation.states.values()]
    return [state["model"] for state in states if "model" in state]


def is_frozen(name):
    return name.rpartition("fc.")[2] in ("weight", "bias") and "fc." in name


NAMES = [*ROW_METHODS, "fedprox+dw"]
STACKABLE = [name for name in NAMES if METHODS.get(name).spec.unstackable is None and name not in STEEP]


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        pytest.param(engine, *case.values, marks=case.marks)
        for engine, names in (("processes", NAMES), ("stacked", STACKABLE), ("replayed", ["fedsc"]))
        for case in sampled(names, *([] if engine == "replayed" else ["fedbn", "fedper", "scaffold"]))
    ],
)
def test_every_engine_trains_a_lean_net_alike(engine, name):
    toy = same_on(engine, configured(name), LABELS, net=lean, epochs=2, participation=0.7)
    assert not any(is_frozen(entry) for tree in final(toy) for entry in tree)


@pytest.mark.parametrize(
    "name", sampled(ROW_METHODS, "fedbn", "feddyn", "fedgen", "fedkd", "fedper", "fml", "scaffold")
)
def test_what_trains_has_the_same_bits_whether_the_rest_travels_or_not(name):
    full, thin = after(made(name), 2), after(made(name, lean), 2)
    assert len(final(full)) == len(final(thin)) > 0
    for all_, trained in zip(final(full), final(thin), strict=True):
        assert same_tree({entry: value for entry, value in all_.items() if not is_frozen(entry)}, trained)
        for entry in all_.keys() - trained.keys():
            assert torch.equal(all_[entry], full.task.init[entry])
    assert [report.terms for report in full.reports] == [report.terms for report in thin.reports]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_is_that_of_torchs_own_optimiser_over_what_trains(engine):
    toy = made(labels=LABELS[:1], batch_size=5)
    reference = TinyAdapter()
    reference.load_state_dict(toy.task.init)
    optimizer = torch.optim.SGD([p for p in reference.parameters() if p.requires_grad], lr=0.1)
    (x, y), order = toy.samples(0), Streams(3).numpy("shuffle", 1, 0)
    for _ in range(2):
        rows = torch.from_numpy(order.permutation(5))
        optimizer.zero_grad()
        cross_entropy(reference(x[rows]), y[rows]).backward()
        optimizer.step()
    found = after(toy, 1, engine).federation.server["model"]
    assert furthest(found, tree_of(reference)) < 1e-5
    assert {n for n in found if not torch.equal(found[n], toy.task.init[n])} == TRAINED | STATISTICS


@pytest.mark.parametrize(("net", "names"), [(TinyAdapter, FROZEN | TRAINED | STATISTICS), (lean, TRAINED | STATISTICS)])
def test_bytes_are_those_of_what_travels(net, names):
    toy = after(made(net=net), 1)
    init = tree_of(TinyAdapter())
    expected = wire_size({"model": {name: init[name] for name in init if name in names}, "samples": 9})
    assert set(toy.federation.server["model"]) == names
    ((report,)) = toy.reports
    assert report.bytes_up == len(LABELS) * expected


class TinyTied(TinyAdapter):
    """One weight under two names."""

    def __init__(self):
        super().__init__()
        self.again = torch.nn.Linear(5, 6, bias=False)
        self.first = torch.nn.Linear(5, 6, bias=False)
        self.again.weight = self.first.weight

    def features(self, x):
        return super().features(x) + self.again(x)


@pytest.mark.parametrize("engine", ["processes", "replayed"])
def test_a_weight_under_two_names_is_one_weight(engine):
    toy = same_on(engine, FedAvg(), LABELS, 3, net=TinyTied, epochs=2)
    model = toy.federation.server["model"]
    assert torch.equal(model["again.weight"], model["first.weight"])
    assert not torch.equal(model["again.weight"], toy.task.init["again.weight"])


def test_a_weight_under_two_names_is_not_stacked():
    assert obstacle(world(FedAvg(), LABELS, net=TinyTied).worker) == "a parameter has two names"
    assert obstacle(world(FedAvg(), LABELS, net=TinyAdapter).worker) is None
