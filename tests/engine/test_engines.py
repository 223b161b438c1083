"""Every engine but the batched one has the bits of plain steps, one client after another, for every method."""

import pytest
import torch

from fedloom.core.tables import ClassTable
from fedloom.methods.contract.contexts import Start
from fedloom.methods.contract.phases import OptimizerSpec, Train, cross_entropy
from fedloom.methods.fedavg import FedAvg
from support import (
    EVERY_ENGINE,
    PLAIN_SGD,
    ROW_METHODS,
    Tiny,
    TinyBN,
    TinyDropout,
    configured,
    handmade,
    same_on,
    sampled,
)

# Unequal clients, one of a single sample: batches of four, a smaller one and one of one, each of which comes twice.
LABELS = [[0, 1, 2, 0, 1, 1, 0, 2, 3, 1, 0], [1, 1, 2, 3, 3, 0, 1, 0, 2, 2, 1], [0], [3, 2, 1, 0, 3], [0, 0]]
WRAPPED = ["fedprox+dw", "fedsc+dw", "fedavg+geomedian", "fedssa+median", "fedavg+normbound", "fedsc+servermomentum"]
WRAPPED += ["fedsc+topk", "fedrep+int8", "fedavg+sign"]  # privacy refuses batch norm
SPECIAL = ["apfl", "ditto", "fd", "feddf", "fedgen", "fedkd", "fedproto", "fedrep", "moon", "perfedavg", "pfedme"]
SPECS = [
    PLAIN_SGD,
    OptimizerSpec(lr=0.1, momentum=0.9),
    OptimizerSpec(lr=0.1, weight_decay=0.01),
    OptimizerSpec(name="adam", lr=0.01, weight_decay=0.01, decay=0.9),
]


class TinyDropoutBN(TinyBN):
    """As `TinyBN`, with dropout behind the ReLU: buffers that move, and random numbers."""

    def __init__(self):
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def features(self, x):
        return self.drop(super().features(x))


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        pytest.param(*case.values, engine, marks=case.marks)
        for case in sampled([*ROW_METHODS, *WRAPPED], *SPECIAL, "scaffold")
        for engine in ("processes", "threads", "replayed")
    ],
)
def test_every_method(name, engine):
    """Some take part, so that clients are new in a late round; steps with both random numbers and buffers."""
    net = TinyBN if name == "fedsam" else TinyDropoutBN  # steps of two passes with dropout are not replayed
    same_on(engine, handmade(name), LABELS, 3, net=net, participation=0.6)


@pytest.mark.parametrize("engine", ["processes", "threads", "replayed"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_optimiser_goes_on_over_epochs(spec, engine):
    same_on(engine, configured("ditto"), LABELS, net=TinyDropout, epochs=2, optimizer=spec)


@pytest.mark.parametrize("name", ["feddw", "fedsc", "fedskc", "fedco2"])
def test_losses_that_authors_write_otherwise(name):
    same_on("replayed", handmade(name, "authors"), LABELS, net=Tiny)


@pytest.mark.parametrize(("net", "shape"), [("lenet5-bn", (1, 28, 28)), ("resnet8", (3, 16, 16))])
def test_convolutions(net, shape):
    spec = OptimizerSpec(lr=0.01, momentum=0.9, weight_decay=1e-4)
    same_on("replayed", configured("fedavg"), LABELS, net=net, shape=shape, optimizer=spec)


class Constants(FedAvg):
    """Constants of every kind, some of them each client's own. Two have one shape: in odd rounds the first is the
    client's own, in even rounds the second."""

    def begin(self, payload, state, ctx):
        own, common = torch.full((4,), 1.0 + ctx.client), torch.full((4,), 0.5)
        odd = ctx.round % 2 == 1
        consts = {
            "scale": own if odd else common,
            "shift": common if odd else own,
            "table": ClassTable(torch.full((4, 1), 0.1 * ctx.client), torch.tensor([True, False, True, True])),
            "heads": [{"w": torch.full((1,), 0.1)}],
            "pair": (torch.arange(4), 3),
            "pull": 0.1 * (1 + ctx.client % 2),
            "nothing": None,
            "yes": True,
            "word": "l2",
        }
        return Start(super().begin(payload, state, ctx).tree, consts)

    def loss(self, net, batch, consts):
        table, (order, power) = consts["table"], consts["pair"]
        assert (consts["nothing"], consts["yes"], consts["word"]) == (None, True, "l2")
        logits = (net(batch.x) * consts["scale"] - consts["shift"])[:, order]
        offset = (table.values[:, 0] * table.held).sum() + consts["heads"][0]["w"].sum() ** power
        decay = consts["pull"] * net.head.weight.square().sum()
        return batch.mean(cross_entropy(logits + offset, batch.y)) + decay


@pytest.mark.parametrize("engine", EVERY_ENGINE[1:])
def test_constants_of_every_kind_are_those_of_their_client(engine):
    toy = same_on(engine, Constants(), LABELS, 4)
    assert engine != "replayed" or toy.worker.stepper.programs > 1  # numbers are part of a program, tensors are not


class Sets(FedAvg):
    """A loss made anew for each client, which closes over the set of its classes."""

    def phases(self, start, ctx):
        held = {int(label) for label in ctx.class_counts.nonzero()}

        def loss(net, batch, consts):
            extra = sum(net.head.bias[label] for label in sorted(held))
            return self.loss(net, batch, consts) + 0.1 * extra

        return [Train(loss, ctx.task.local_epochs)]


@pytest.mark.parametrize("engine", EVERY_ENGINE[1:])
def test_a_loss_may_close_over_a_set(engine):
    toy = same_on(engine, Sets(), LABELS, 3, net=TinyBN)
    assert engine != "replayed" or toy.worker.stepper.programs > 1


class Noise(FedAvg):
    """A loss that draws random numbers of torch."""

    def loss(self, net, batch, consts):
        noise = torch.randn(batch.x.shape) * 0.1 + torch.rand_like(batch.x) * 0.01
        return batch.mean(cross_entropy(net(batch.x + noise), batch.y))


class ReplacesABuffer(TinyBN):
    """A new tensor in place of a buffer, in every pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def features(self, x):
        z = super().features(x)
        self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)
        return z - self.mean


class CountsPasses(TinyBN):
    """A net that writes into a buffer whenever it is evaluated, as statistics passes do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def features(self, x):
        if not self.training:
            self.passes += 1
        return super().features(x)


@pytest.mark.parametrize("engine", ["processes", "threads", "replayed"])
@pytest.mark.parametrize(
    ("method", "net"),
    [(Noise(), TinyDropout), (configured("fedavg"), ReplacesABuffer), (configured("fedskc"), CountsPasses)],
)
def test_nets_and_losses_with_something_of_their_own(method, net, engine):
    """Random numbers of torch, a buffer that is replaced, and one that evaluation changes."""
    toy = same_on(engine, method, LABELS, 4, net=net)
    assert net is not CountsPasses or toy.federation.server["model"]["passes"] > 0
