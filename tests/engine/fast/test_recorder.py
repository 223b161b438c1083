"""Recorded steps: the bits of the steps they were made from, for every method, and nothing else is recorded."""

import pytest
import torch

from fedloom.engine.client import Worker
from fedloom.engine.fast.recorder import Recorder, Taken
from fedloom.engine.stacked import Batched
from fedloom.methods import METHODS
from fedloom.methods.facts import Start
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.parts.losses import cross_entropy
from fedloom.methods.phases import Objective, OptimizerSpec
from support import Tiny, TinyBN, TinyDropout, configured, same_bits, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
NAMES = [*METHODS.names(), "fedprox+dw", "fedsc+dw"]


def pair(method, *, engine=None, rounds=4, **settings):
    """A federation that records at once, after the same one that never does."""
    toys = [world(method, LABELS, batch_size=4, rounds=rounds, **settings) for _ in range(2)]
    for toy, after in zip(toys, (1e9, 0.0), strict=True):
        toy.worker.recorder = Recorder(after, longest_seconds=1e9, after=1)
        if engine is not None:
            toy.federation.engine = engine(toy.worker)
            toy.federation.engine.stacks.recorder = toy.worker.recorder
        toy.reports = [toy.federation.step() for _ in range(rounds)]
    return toys


def same(toys):
    one, other = toys
    assert same_bits(one.federation.server, other.federation.server)
    assert all(same_bits(state, other.federation.states[k]) for k, state in one.federation.states.items())
    for a, b in zip(one.reports, other.reports, strict=True):
        assert (a.terms, a.findings, a.steps) == (b.terms, b.findings, b.steps)
    return other.worker.recorder.programs


@pytest.mark.parametrize("net", [Tiny, TinyBN])
@pytest.mark.parametrize("preset", ["sound", "authors"])
@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_the_same_bits_recorded(name, preset, net):
    assert same(pair(configured(name, preset), net=net, rounds=3)) > 0


@pytest.mark.parametrize("name", NAMES)
def test_stacks_have_the_same_bits_recorded(name):
    assert same(pair(configured(name), net=TinyBN, engine=Batched, rounds=3)) > 0


@pytest.mark.parametrize(("net", "shape"), [("lenet5-bn", (1, 28, 28)), ("resnet8", (3, 16, 16))])
def test_convolutions(net, shape):
    momentum = OptimizerSpec(lr=0.01, momentum=0.9, weight_decay=1e-4)
    assert same(pair(configured("fedavg"), net=net, shape=shape, rounds=2, optimizer=momentum)) > 0


@pytest.mark.parametrize(
    "spec",
    [
        OptimizerSpec(lr=0.1, momentum=0.9),
        OptimizerSpec(lr=0.1, weight_decay=0.01),
        OptimizerSpec("adam", lr=0.01, weight_decay=0.01),
    ],
    ids=str,
)
def test_every_optimiser_goes_on_where_a_recording_left_it(spec):
    """Two epochs: the second starts from the state that the first one's recording made."""
    assert same(pair(configured("fedavg"), epochs=2, optimizer=spec)) > 1


def test_a_recording_that_spoils_its_own_constants_is_not_used():
    recorder, seen = Recorder(0.0, longest_seconds=1e9, after=1), []

    def pure(given):
        view = torch.ones_like(given).view(3, 1)
        view += given.view(3, 1)  # not seen as a write into what `ones_like` made
        seen.append(1)
        return Taken([Objective(view.sum(), {})], [])

    for _ in range(3):
        taken = recorder.take("key", None, lambda: pure(torch.ones(3)), pure, [torch.ones(3)])
        assert float(taken.objectives[0].total) == 6
    assert recorder.programs == 0


def test_a_worker_that_must_not_record_does_not():
    toy = world(configured("fedavg"), LABELS, batch_size=4)
    worker = Worker(toy.method, [toy.net], toy.data, toy.worker.local, record=False)
    for one in (worker, worker.twin()):
        one.recorder.hurried = True
        for _ in range(3):
            one.run(toy.job(0))
        assert one.recorder.programs == 0
    assert Batched(worker).stacks.recorder.longest_seconds == 0


def test_one_that_is_hurried_records_what_comes_twice():
    toy = world(configured("fedavg"), LABELS, batch_size=4)
    toy.federation.engine.hurry(True)
    for _ in range(3):
        toy.worker.run(toy.job(0))
    assert toy.worker.recorder.programs == 1


def test_later_recordings_wait_for_no_more_than_twice_what_one_takes():
    """The first one pays for what all of them need."""
    weight, recorder = torch.ones(3, requires_grad=True), Recorder(0.5, longest_seconds=1e9, after=1)
    recorder.hurried = True
    for _ in range(3):
        recorder.take("key", None, lambda: step_of(weight), lambda w: step_of(w.detach().requires_grad_()), [weight])
    assert recorder.programs == 1
    assert recorder.after_seconds < 0.5


def test_dropout_is_not_recorded():
    assert same(pair(configured("fedavg"), net=TinyDropout)) == 0


class Decides(FedAvg):
    """A loss that looks at a value: a recording would keep the first decision."""

    def loss(self, net, batch, consts):
        loss = super().loss(net, batch, consts)
        return loss if float(loss.detach()) > 1.3 else 2 * loss


def test_a_loss_that_decides_by_a_value_is_not_recorded():
    assert same(pair(Decides())) == 0


def test_a_constant_that_changes_is_seen():
    """FedSC's prototypes differ in every round, and so does the weight of a term that grows."""
    toys = pair(configured("fedsc", "paper", rpcl_ramp=3), epochs=3, rounds=5)
    assert same(toys) > 0


@pytest.mark.parametrize(("name", "ramp"), [("fedsc", "rpcl_ramp"), ("fedskc", "lcl_ramp")])
def test_a_weight_that_grows_needs_no_recording_of_its_own_in_every_round(name, ramp):
    one, other = (
        pair(configured(name, **{ramp: length}), rounds=6, engine=None)[1].worker.recorder.programs
        for length in (0, 100)
    )
    assert one == other


def step_of(weight):
    loss = weight.square().sum()
    return Taken([Objective(loss, {"loss": loss})], torch.autograd.grad(loss, [weight]))


def test_short_lived_steps_are_left_alone():
    weight, recorder = torch.ones(3, requires_grad=True), Recorder(1e9, longest_seconds=1e9, after=1)
    for _ in range(5):
        recorder.take("key", None, lambda: step_of(weight), step_of, [weight])
    assert recorder.programs == 0


def test_long_steps_are_left_alone():
    weight, recorder = torch.ones(3, requires_grad=True), Recorder(0.0, longest_seconds=1e-9, after=1)
    for _ in range(5):
        recorder.take("key", None, lambda: step_of(weight), step_of, [weight])
    assert recorder.programs == 0


def test_a_recording_with_other_bits_is_not_used():
    weight, recorder = torch.ones(3, requires_grad=True), Recorder(0.0, longest_seconds=1e9, after=1)
    calls = []

    def unsteady(given):
        calls.append(1)
        return step_of((given * len(calls)).detach().requires_grad_())

    for _ in range(3):
        taken = recorder.take("key", None, lambda: step_of(weight), unsteady, [weight])
    assert recorder.programs == 0
    assert taken.objectives[0].total == 3


def test_a_recording_names_its_terms_and_gradients():
    weight, recorder = torch.ones(3, requires_grad=True), Recorder(0.0, longest_seconds=1e9, after=1)

    def pure(given):
        return step_of(given.detach().requires_grad_())

    for _ in range(2):
        taken = recorder.take("key", None, lambda: step_of(weight), pure, [weight])
    assert recorder.programs == 1
    assert taken.objectives[0].terms == {"loss": torch.tensor(3.0)}
    assert torch.equal(taken.tensors[0], torch.full((3,), 2.0))


def test_inputs_of_another_layout_have_a_recording_of_their_own():
    """Flattening is a view of one and a copy of the other."""
    recorder = Recorder(0.0, longest_seconds=1e9, after=1)

    def pure(given):
        weight = given.detach().requires_grad_()
        loss = (weight.reshape(-1) * torch.arange(6.0)).sum()
        return Taken([Objective(loss, {"loss": loss})], torch.autograd.grad(loss, [weight]))

    for given in [torch.ones(2, 3), torch.ones(3, 2).T] * 3:
        taken = recorder.take("key", None, lambda given=given: pure(given), pure, [given])
        assert torch.equal(taken.tensors[0], torch.arange(6.0).view(2, 3))
    assert recorder.programs == 2


def test_steps_that_are_no_longer_met_are_forgotten(monkeypatch):
    monkeypatch.setattr("fedloom.engine.fast.recorder.REMEMBERED", 3)
    weight, recorder = torch.ones(3, requires_grad=True), Recorder(1e9)
    for number in range(10):
        recorder.take(number, None, lambda: step_of(weight), step_of, [weight])
    assert len(recorder._known) <= 3


def test_a_constant_that_stops_being_shared_is_not_taken_for_one_that_is():
    """The same shapes, once with one leaf of each client's own, once with the other."""
    toys = pair(Swaps(), engine=Batched, rounds=6)
    assert same(toys) > 0


class Swaps(FedAvg):
    """Two constants of the same shape: in odd rounds the first is the client's own, in even rounds the second."""

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        own, common = torch.full((4,), 1.0 + ctx.client), torch.full((4,), 0.5)
        odd = ctx.round % 2 == 1
        return Start(start.tree, {"a": own if odd else common, "b": common if odd else own})

    def loss(self, net, batch, consts):
        return batch.mean(cross_entropy(net(batch.x) * consts["a"] - consts["b"], batch.y))
