"""Steps of several clients as one graph: the same for every method, made when first asked for, on memory handed in."""

import pytest
import torch

from fedloom.core.errors import ClientError
from fedloom.core.native import KernelError, compiler
from fedloom.engine import cpp
from fedloom.engine.batched import Batched
from fedloom.engine.stack_blocks import Blocks
from fedloom.engine.stacks import Stacks
from fedloom.methods import METHODS
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.phases import OptimizerSpec
from support import Tiny, TinyBN, configured, near, world

ALIKE = [[0, 1, 2, 0, 1, 1, 0, 3], [1, 1, 2, 3, 3, 0, 1, 2], [0, 1, 2, 3, 0, 1, 2, 3]]
LOOKING_UP = {"fedsc", "fedskc"}  # once there is knowledge, losses take rows of tables by masks: torch's graphs do it
needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
OPTIMIZERS = [OptimizerSpec(lr=0.1), OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=1e-3)]


def blocks_of(method, *, labels=ALIKE, rounds=3, least=0, native=False, **settings):
    """A federation after some rounds in stacks, its graphs, and one after the same rounds client by client."""
    toys = [world(method, labels, batch_size=3, **settings) for _ in range(2)]
    engine = toys[0].federation.engine = Batched(toys[0].worker.twin(native=native))
    engine.stacks.blocks.least = least
    for toy in toys:
        for _ in range(rounds):
            toy.federation.step()
    return toys[0], list(engine.stacks.blocks._made.values()), toys[1]


def assert_near(stacked, serial):
    assert near(stacked.federation.server, serial.federation.server, 1e-5)
    states = zip(stacked.federation.states.values(), serial.federation.states.values(), strict=True)
    assert all(near(one, other, 1e-5) for one, other in states)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=["sgd", "momentum"])
@pytest.mark.parametrize("name", [*METHODS.names(), "fedprox+dw", "fedsc+dw"])
def test_every_method_has_graphs_with_the_numbers_of_its_steps(name, optimizer):
    stacked, graphs, serial = blocks_of(configured(name), net=Tiny, optimizer=optimizer, epochs=2)
    assert graphs
    assert all(graph is not None for graph in graphs)
    assert_near(stacked, serial)


@needs_compiler
@pytest.mark.parametrize("name", [*METHODS.names(), "fedprox+dw"])
def test_every_methods_graphs_are_compiled_with_native_kernels(name):
    optimizer = OPTIMIZERS[name in ("fedavg", "fedprox")]
    stacked, graphs, serial = blocks_of(configured(name), native=True, rounds=2, optimizer=optimizer)
    assert graphs
    assert any(graph.compiled for graph in graphs)
    assert all(graph.compiled for graph in graphs) or name in LOOKING_UP
    assert_near(stacked, serial)


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


@pytest.mark.parametrize("native", [False, pytest.param(True, marks=needs_compiler)], ids=["torch", "native"])
def test_weights_are_written_where_the_worker_says(native):
    toy = world(configured("fedavg"), ALIKE, batch_size=3, net=Wide)
    worker = toy.worker.twin(native=native)
    room = worker.room = Room()
    stacks = Batched(worker).stacks
    stacks.blocks.least = 0
    done = stacks.run([toy.federation.job(client, 1) for client in range(3)])
    assert [graph.compiled for graph in stacks.blocks._made.values()] == [native]
    assert len(room.given) == 4
    assert not any(tensor.isnan().any() for tensor in room.given)
    assert all(room.holds(tensor) for one in done for tensor in one.payload["model"].values())


class Tanh(Tiny):
    """With an operator for which there is no C++."""

    def features(self, x):
        return torch.tanh(super().features(x))


@needs_compiler
def test_what_has_no_cpp_is_torchs():
    stacked, graphs, serial = blocks_of(configured("fedavg"), native=True, net=Tanh)
    assert graphs
    assert not any(graph.compiled for graph in graphs)
    assert_near(stacked, serial)


def test_what_cannot_be_compiled_is_told(monkeypatch):
    """It was asked for: nothing slower is run in its place."""

    def fails(*_):
        raise KernelError("cache folder /nowhere: cannot be written")

    monkeypatch.setattr(cpp, "Program", fails)
    with pytest.raises(ClientError, match="cannot be written"):
        blocks_of(configured("fedavg"), native=True)


@needs_compiler
def test_a_block_of_other_numbers_is_not_used(monkeypatch):
    original = cpp.Program.__call__

    def wrong(self, clients, inputs, results):
        original(self, clients, inputs, results)
        results[-1].add_(0.01)

    monkeypatch.setattr(cpp.Program, "__call__", wrong)
    stacked, graphs, serial = blocks_of(configured("fedavg"), native=True)
    assert graphs == [None] * len(graphs) != []
    assert_near(stacked, serial)


@needs_compiler
def test_to_compile_takes_longer_runs():
    def worker(native):
        return world(configured("fedavg"), ALIKE).worker.twin(native=native)

    assert Stacks(worker(True), 4).blocks.least > Stacks(worker(False), 4).blocks.least


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
