"""Steps of several clients as one graph: the same for every method, made when first asked for, on memory handed in."""

import pytest
import torch

from fedloom.engine.batched import Batched
from fedloom.engine.serial import Serial
from fedloom.engine.stack_blocks import Blocks, has_large_updates
from fedloom.methods import METHODS
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.phases import OptimizerSpec
from fedloom.nets.kernels import compiler
from fedloom.nets.kernels.operators import update
from support import Tiny, TinyBN, configured, near, world

ALIKE = [[0, 1, 2, 0, 1, 1, 0, 3], [1, 1, 2, 3, 3, 0, 1, 2], [0, 1, 2, 3, 0, 1, 2, 3]]
OPTIMIZERS = [OptimizerSpec(lr=0.1), OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=1e-3)]


def blocks_of(method, *, labels=ALIKE, rounds=3, least=0, **settings):
    """A federation after some rounds in stacks, its graphs, and one after the same rounds client by client."""
    toys = [world(method, labels, batch_size=3, **settings) for _ in range(2)]
    engine = toys[0].federation.engine = Batched(toys[0].worker)
    engine.stacks.blocks.least = least
    for toy in toys:
        for _ in range(rounds):
            toy.federation.step()
    return toys[0], list(engine.stacks.blocks._made.values()), toys[1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "momentum"])
@pytest.mark.parametrize("name", [*METHODS.names(), "fedprox+dw", "fedsc+dw"])
def test_every_method_has_graphs_with_the_numbers_of_its_steps(name, optimizer):
    stacked, graphs, serial = blocks_of(configured(name), net=Tiny, optimizer=optimizer, epochs=2)
    assert graphs
    assert all(graph is not None for graph in graphs)
    assert near(stacked.federation.server, serial.federation.server, 1e-5)
    states = zip(stacked.federation.states.values(), serial.federation.states.values(), strict=True)
    assert all(near(one, other, 1e-5) for one, other in states)


@pytest.mark.parametrize(
    "settings",
    [
        {"least": 5_000},
        {"net": TinyBN},
        {"labels": [*ALIKE, [0, 1]]},
        {"optimizer": OptimizerSpec("adam", lr=0.01)},
    ],
    ids=["a short run", "batch norm", "clients of several sizes", "steps that depend on their number"],
)
def test_where_they_would_not_pay_there_are_none(settings):
    _, graphs, _ = blocks_of(configured("fedavg"), **settings)
    assert graphs == []


def test_a_worker_that_must_not_record_has_none():
    toy = world(configured("fedavg"), ALIKE, batch_size=3)
    toy.worker.record = False
    engine = toy.federation.engine = Batched(toy.worker)
    engine.stacks.blocks.least = 0
    toy.federation.step()
    assert engine.stacks.blocks._made == {}


def test_the_bits_do_not_depend_on_when_a_graph_is_compiled():
    early, late = (world(configured("fedavg"), ALIKE, batch_size=3) for _ in range(2))
    for toy, hurried in ((early, True), (late, False)):
        toy.federation.engine = Batched(toy.worker)
        toy.federation.engine.stacks.blocks.least = 0
        toy.federation.engine.hurry(hurried)
        for _ in range(5):
            toy.federation.step()
    recorders = [toy.federation.engine.stacks.recorder for toy in (early, late)]
    assert [recorder.programs > 0 for recorder in recorders] == [True, False]
    assert all(
        torch.equal(early.federation.server["model"][name], value)
        for name, value in late.federation.server["model"].items()
    )


class Wide(Tiny):
    """With a weight large enough for memory of its own."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(self.fc.in_features, 8192)
        self.head = torch.nn.Linear(8192, self.head.out_features)


class Room:
    """Memory of which it is known what was written."""

    def __init__(self):
        self.given = []

    def empty_like(self, tensor):
        self.given.append(torch.full(tensor.shape, float("nan"), dtype=tensor.dtype))
        return self.given[-1]

    def holds(self, tensor):
        return any(tensor.untyped_storage().data_ptr() == own.untyped_storage().data_ptr() for own in self.given)


def test_weights_are_written_where_the_worker_says():
    toy = world(configured("fedavg"), ALIKE, batch_size=3, net=Wide)
    room = toy.worker.room = Room()
    stacks = Batched(toy.worker).stacks
    stacks.blocks.least = 0
    done = stacks.run([toy.federation.job(client, 1) for client in range(3)])
    assert len(room.given) == 4
    assert not any(tensor.isnan().any() for tensor in room.given)
    assert all(room.holds(tensor) for one in done for tensor in one.payload["model"].values())


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("name", ["fedavg", "fedsc", "fedssa", "local"])
@pytest.mark.parametrize("hurried", [False, True], ids=["replayed", "compiled"])
def test_large_updates_by_native_kernels(name, hurried):
    def trained(engine):
        toy = world(configured(name), ALIKE, net="mlp-128", shape=(1, 28, 28), batch_size=3, epochs=2)
        engine = toy.federation.engine = engine(toy.worker)
        if isinstance(engine, Batched):
            engine.stacks.blocks.least = 0
        engine.hurry(hurried)
        for _ in range(3):
            toy.federation.step()
        return toy.federation, engine

    native, engine = trained(lambda worker: Batched(worker.twin(native=True)))
    graphs = [graph for graph in engine.stacks.blocks._made.values() if graph is not None]
    assert any(node.target is update() for graph in graphs for node in graph._graph.graph.nodes)
    serial, _ = trained(Serial)
    assert near(native.server, serial.server, 1e-5)
    states = zip(native.states.values(), serial.states.values(), strict=True)
    assert all(near(one, other, 1e-5) for one, other in states)


@pytest.mark.parametrize(
    ("net", "shape", "large"),
    [("mlp-128", (1, 28, 28), True), ("logistic", (1, 28, 28), False), ("lenet5", (1, 28, 28), False)],
)
def test_nets_with_large_updates(net, shape, large):
    assert has_large_updates(world(configured("fedavg"), ALIKE, net=net, shape=shape).net) == large


class Looks(FedAvg):
    """Its loss decides by a value, after a number of calls that tracing exceeds."""

    def loss(self, net, batch, consts):
        out = super().loss(net, batch, consts)
        return out if torch._C._functorch.peek_interpreter_stack() is not None or float(out) >= 0 else -out


def test_what_cannot_be_traced_goes_step_by_step():
    stacked, graphs, serial = blocks_of(Looks(), rounds=2)
    assert graphs == [None] * len(graphs) != []
    assert near(stacked.federation.server, serial.federation.server, 1e-5)


def test_a_failure_is_not_tried_again_and_there_is_a_limit():
    blocks, calls = Blocks(), []

    def fails():
        calls.append(1)
        raise ValueError("no graph")

    assert [blocks.get("one", fails) for _ in range(2)] == [None, None]
    assert len(calls) == 1
    for number in range(100):
        blocks.get(number, fails)
    assert len(calls) == 64
