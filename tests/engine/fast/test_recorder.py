"""Recorded steps: the bits of the steps they were made from, for every method, and nothing else is recorded."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedloom.engine.client import Worker
from fedloom.engine.fast import recorder as module
from fedloom.engine.fast.programs import RandomNumbersError, UnrecordableError
from fedloom.engine.fast.recorder import Recorder, lengths_of, record
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.speedups import Speedups
from fedloom.engine.stacked import Batched
from fedloom.engine.steps import Block, EpochSteps, StepResults
from fedloom.methods.contract.contexts import Start
from fedloom.methods.contract.losses import cross_entropy
from fedloom.methods.contract.phases import Objective, OptimizerSpec, Train
from fedloom.methods.fedavg import FedAvg
from support import PLAIN_SGD, ROW_METHODS, Tiny, TinyBN, TinyDropout, configured, handmade, same_bits, same_tree, world

LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 3, 3, 0, 1], [0], [2, 3, 2, 1, 0, 2, 2, 2, 1], [0, 0]]
# For every method: a piece of two steps, a smaller batch, a batch of one; each comes twice.
FEW = [[0, 1, 2, 0, 1, 1, 0, 2, 3, 1, 0], [1, 1, 2, 3, 3, 0, 1, 0, 2, 2, 1], [0]]
NAMES = [*ROW_METHODS, "fedprox+dw", "fedsc+dw"]
LONG = 1e9


def at_once():
    """A recorder that records what comes twice."""
    return Recorder(0.0, 0, LONG)


def pair(method, *, labels=LABELS, rounds=2, **settings):
    """A federation whose steps are recorded at once, after the same one that takes them one by one."""
    toys = [world(method, labels, batch_size=4, rounds=rounds, **settings) for _ in range(2)]
    for toy, stepping in zip(toys, (Speedups(steps=False).stepper(), at_once()), strict=True):
        toy.worker.stepper = stepping
        toy.reports = [toy.federation.step() for _ in range(rounds)]
    return toys


def same(toys):
    """The number of recordings, once all else is the same."""
    one, other = toys
    assert same_bits(one.federation.server, other.federation.server)
    assert one.federation.states.keys() == other.federation.states.keys()
    assert all(same_bits(state, other.federation.states[k]) for k, state in one.federation.states.items())
    for a, b in zip(one.reports, other.reports, strict=True):
        assert (a.terms, a.diagnostics, a.steps, a.samples) == (b.terms, b.diagnostics, b.steps, b.samples)
    return other.worker.stepper.programs


@pytest.mark.parametrize("name", NAMES)
def test_every_method_has_the_same_bits_recorded(name):
    assert same(pair(configured(name), labels=FEW, net=TinyBN)) > 0


@pytest.mark.parametrize("name", ["feddw", "fedsc", "fedskc", "fedco2"])
def test_what_authors_do_otherwise_has_the_same_bits_recorded(name):
    """Their losses are written in other ways."""
    assert same(pair(handmade(name, "authors"), net=Tiny)) > 0


@pytest.mark.parametrize(("net", "shape"), [("lenet5-bn", (1, 28, 28)), ("resnet8", (3, 16, 16))])
def test_convolutions(net, shape):
    momentum = OptimizerSpec(lr=0.01, momentum=0.9, weight_decay=1e-4)
    assert same(pair(configured("fedavg"), net=net, shape=shape, optimizer=momentum)) > 0


@pytest.mark.parametrize(
    "spec",
    [
        OptimizerSpec(lr=0.1, momentum=0.9),
        OptimizerSpec(lr=0.1, weight_decay=0.01),
        OptimizerSpec(name="adam", lr=0.01, weight_decay=0.01),
    ],
    ids=str,
)
def test_every_optimiser_goes_on_where_a_recording_left_it(spec):
    """Two epochs: the second starts from the state that the first one's recording made."""
    assert same(pair(configured("fedavg"), epochs=2, optimizer=spec)) > 1


def test_dropout_is_not_recorded():
    """Nor is that worth a word: a net with dropout is as it should be."""
    toys = pair(configured("fedavg"), net=TinyDropout)
    assert same(toys) == 0
    assert toys[1].worker.stepper._refused


class NoiseOfNumPy(Tiny):
    """A recording would keep the number that it was made with."""

    def features(self, x):
        return super().features(x) * (1 + float(np.random.random()))  # noqa: NPY002


class ReplacesABuffer(TinyBN):
    """A new tensor in place of a buffer, in every pass."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def features(self, x):
        z = super().features(x)
        self.mean = 0.9 * self.mean + 0.1 * z.detach().mean(0)
        return z - self.mean


def test_numbers_of_numpy_are_not_recorded():
    assert same(pair(configured("fedavg"), net=NoiseOfNumPy, rounds=4)) == 0


def test_buffers_that_a_net_replaces_are_recorded():
    assert same(pair(configured("fedavg"), net=ReplacesABuffer, rounds=4)) > 0


class Decides(FedAvg):
    """A loss that looks at a value: a recording would keep the first decision."""

    def loss(self, net, batch, consts):
        loss = super().loss(net, batch, consts)
        return loss if float(loss.detach()) > 1.3 else 2 * loss


def test_a_loss_that_decides_by_a_value_is_not_recorded_and_it_is_said_once():
    toys = pair(Decides(), rounds=3)
    diagnostics = [diagnostic for report in toys[1].reports for diagnostic in report.diagnostics]
    assert [diagnostic.code for diagnostic in diagnostics] == ["engine.plain_steps"]
    assert diagnostics[0].message.startswith("steps are taken one by one, slower and with the same numbers: ")
    assert "\n" not in diagnostics[0].message
    toys[1].reports = [dataclasses.replace(report, diagnostics=[]) for report in toys[1].reports]
    assert same(toys) == 0


def test_a_constant_that_changes_is_seen():
    """FedSC's prototypes differ in every round, and so does the weight of a term that grows."""
    toys = pair(configured("fedsc", "paper", rpcl_ramp=3), rounds=4)
    assert same(toys) > 0


@pytest.mark.parametrize(("name", "ramp"), [("fedsc", "rpcl_ramp"), ("fedskc", "lcl_ramp")])
def test_a_weight_that_grows_needs_no_recording_of_its_own_in_every_round(name, ramp):
    made = []
    for length in (0, 100):
        toy = world(configured(name, **{ramp: length}), LABELS, batch_size=4, rounds=9)
        toy.worker.stepper, toy.federation.round = at_once(), 5  # past the rounds in which single steps are measured
        for _ in range(4):
            toy.federation.step()
        made.append(toy.worker.stepper.programs)
    assert made[0] == made[1] > 0


class Swaps(FedAvg):
    """Two constants of the same shape: in odd rounds the first is the client's own, in even rounds the second."""

    def begin(self, payload, state, ctx):
        start = super().begin(payload, state, ctx)
        own, common = torch.full((4,), 1.0 + ctx.client), torch.full((4,), 0.5)
        odd = ctx.round % 2 == 1
        return Start(start.tree, {"a": own if odd else common, "b": common if odd else own})

    def loss(self, net, batch, consts):
        return batch.mean(cross_entropy(net(batch.x) * consts["a"] - consts["b"], batch.y))


def test_constants_of_one_shape_are_not_taken_for_each_other():
    assert same(pair(Swaps(), rounds=4)) > 0


class Pulls(FedAvg):
    """A number of each client's own among the constants."""

    def begin(self, payload, state, ctx):
        return Start(super().begin(payload, state, ctx).tree, {"pull": 0.1 * (1 + ctx.client % 2)})

    def loss(self, net, batch, consts):
        return super().loss(net, batch, consts) + consts["pull"] * net.head.weight.square().sum()


def test_numbers_are_part_of_what_is_recorded():
    assert same(pair(Pulls(), rounds=3)) > 1


# -- whose steps are recorded ------------------------------------------------------------------------------------------
def test_a_worker_that_must_not_record_does_not():
    toy = world(configured("fedavg"), LABELS, batch_size=4)
    plain = Speedups(steps=False)
    worker = Worker(toy.method, [toy.net], toy.data, toy.worker.local_training, speedups=plain)
    for one in (worker, worker.copy(), Batched(worker, 2).stacks.worker):
        assert not isinstance(one.stepper, Recorder)
        assert one.stepper.notes() == ()
    for one in (toy.worker, toy.worker.copy(), worker.copy(Speedups())):
        assert isinstance(one.stepper, Recorder)
    assert same_bits(worker.run(toy.job(0)).payload, toy.worker.run(toy.job(0)).payload)


def steps_of(toy, *, spec=PLAIN_SGD, phase=None):
    """A client's steps, ready to be taken."""
    client, live = toy.worker.begin(toy.job(0)), toy.worker.loaded_nets[0]
    live.load(client.start.tree)
    live.net.train()
    parameters = dict(live.parameters)
    optimizer = Optimizer(spec, list(parameters.values()))
    return EpochSteps(live, phase or client.phases[0], client.consts, parameters, optimizer)


def some_block(toy, count=4, size=4):
    x, y = toy.samples(0)
    return Block(x[:count], y[:count], size)


@pytest.fixture
def toy():
    return world(configured("fedavg"), [[0, 1, 2, 3] * 20])


def test_what_comes_twice_is_recorded_where_it_pays_at_once(toy):
    recorder, steps = at_once(), steps_of(toy)
    for programs in (0, 1, 1):
        recorder(steps, some_block(toy))
        assert recorder.programs == programs


def test_a_recording_names_its_terms_and_moves_what_the_steps_move():
    toys = [world(configured("fedprox"), [[0, 1, 2, 3] * 4]) for _ in range(2)]
    recorder, momentum = at_once(), OptimizerSpec(lr=0.1, momentum=0.9)
    ours, plain = (steps_of(one, spec=momentum) for one in toys)
    for _ in range(4):
        outs = recorder(ours, some_block(toys[0], 8))
        expected = plain.run(some_block(toys[1], 8)).objectives
        assert len(outs) == len(expected) == 2
        for out, like in zip(outs, expected, strict=True):
            assert list(out.terms) == list(like.terms)
            assert torch.equal(out.total, like.total)
            assert all(torch.equal(out.terms[name], like.terms[name]) for name in like.terms)
        assert same_tree(ours.loaded_net.tree, plain.loaded_net.tree)
        assert all(torch.equal(a, b) for a, b in zip(ours.optimizer.state, plain.optimizer.state, strict=True))
        assert ours.optimizer.steps == plain.optimizer.steps
    # one for the first steps, which make the momenta, would need a second optimiser
    assert recorder.programs == 1


def test_pieces_that_must_come_more_often_do(toy):
    recorder, steps = Recorder(0.0, 3, LONG), steps_of(toy)
    for programs in (0, 0, 0, 1):
        recorder(steps, some_block(toy))
        assert recorder.programs == programs


def test_steps_that_save_too_little_so_far_are_left_alone(toy):
    recorder, steps = Recorder(LONG, 0, LONG), steps_of(toy)
    for _ in range(5):
        recorder(steps, some_block(toy))
    assert recorder.programs == 0


def test_long_steps_are_left_alone(toy):
    recorder, steps = Recorder(0.0, 0, 1e-9), steps_of(toy)
    for _ in range(5):
        recorder(steps, some_block(toy))
    assert recorder.programs == 0


def test_later_recordings_wait_for_no_more_than_twice_what_one_takes(toy, monkeypatch):
    """The first one pays for what all of them need."""
    monkeypatch.setattr(module, "SAVED_SECONDS", 1000.0)
    recorder, steps = Recorder(900.0, 0, LONG), steps_of(toy)
    for _ in range(2):
        recorder(steps, some_block(toy))
    assert recorder.programs == 1
    assert 0 < recorder.expected_seconds < 900


def test_no_more_are_recorded_than_may_be(toy, monkeypatch):
    monkeypatch.setattr(module, "MAX_PROGRAMS", 1)
    recorder, steps = at_once(), steps_of(toy)
    for _ in range(3):
        for count in (3, 4):
            recorder(steps, some_block(toy, count))
    assert recorder.programs == 1


def test_inputs_of_another_layout_have_a_recording_of_their_own(toy):
    """Flattening is a view of one and a copy of the other."""

    class Flat(FedAvg):
        def loss(self, net, batch, consts):
            return (batch.x.reshape(-1) * torch.arange(20.0)).sum() * net.head.bias.sum()

    toy = world(Flat(), [[0, 1, 2, 3]])
    recorder, steps, x = at_once(), steps_of(toy, phase=Train(Flat().loss)), torch.arange(20.0).view(4, 5)
    other = world(Flat(), [[0, 1, 2, 3]])
    plain = steps_of(other, phase=steps.phase)
    for given in [x, x.T.contiguous().T] * 3:
        (out,) = recorder(steps, Block(given, torch.zeros(4, dtype=torch.int64), 4))
        (like,) = plain.run(Block(given, torch.zeros(4, dtype=torch.int64), 4)).objectives
        assert torch.equal(out.total, like.total)
    assert recorder.programs == 2


def test_constants_of_another_layout_have_a_recording_of_their_own():
    class Given(FedAvg):
        def loss(self, net, batch, consts):
            return (consts["table"].reshape(-1) * torch.arange(6.0)).sum() * net.head.bias.sum()

    toy, table = world(Given(), [[0, 1, 2, 3]]), torch.randn(2, 3)
    recorder, first = at_once(), steps_of(toy)
    for given in [table, table.T.contiguous().T] * 3:
        steps = dataclasses.replace(first, consts={"table": given})
        before = float(first.loaded_net.net.head.bias.detach().sum())
        (out,) = recorder(steps, some_block(toy))
        assert float(out.total) == pytest.approx(
            float((table.reshape(-1) * torch.arange(6.0)).sum()) * before, rel=1e-5
        )
    assert recorder.programs == 2


def test_kinds_of_pieces_that_are_no_longer_met_are_forgotten(toy, monkeypatch):
    monkeypatch.setattr(module, "MAX_COUNTED", 3)
    recorder, steps = Recorder(LONG, 0, LONG), steps_of(toy)
    for count in range(1, 5):
        recorder(steps, some_block(toy, count, 4))
        recorder(steps, some_block(toy, count, 3))
    assert 0 < len(recorder._statistics) <= 3


def test_recordings_are_not_forgotten(toy, monkeypatch):
    monkeypatch.setattr(module, "MAX_COUNTED", 2)
    recorder, steps = at_once(), steps_of(toy)
    for _ in range(2):
        recorder(steps, some_block(toy))
    recorder.expected_seconds = LONG
    for count in (1, 2, 3):
        recorder(steps, some_block(toy, count))
    assert sum(seen.recording is not None for seen in recorder._statistics.values()) == recorder.programs == 1


def test_blocks_on_another_device_are_taken_as_they_are():
    taken = [object()]
    steps = SimpleNamespace(run=lambda block: StepResults(taken, []))
    block = Block(torch.zeros(4, 2, device="meta"), torch.zeros(4, device="meta"), 4)
    assert at_once()(steps, block) is taken


@pytest.mark.parametrize(
    ("samples", "lengths"),
    [(4, [1]), (3, [1]), (7, [1, 1]), (8, [2]), (60, [8, 4, 2, 1]), (62, [8, 4, 2, 1, 1]), (64, [8, 8]), (0, [])],
)
def test_a_block_is_cut_into_pieces_of_a_few_lengths(samples, lengths):
    block = Block(torch.arange(samples * 2.0).view(samples, 2), torch.arange(samples), 4)
    assert lengths_of(block) == lengths
    pieces = block.split(lengths_of(block))
    assert [len(piece) for piece in pieces] == lengths
    assert torch.cat([piece.y for piece in pieces] or [block.y]).tolist() == list(range(samples))


# -- what a recording must give ----------------------------------------------------------------------------------------
def step_of(weight):
    weight = weight.detach().requires_grad_()
    loss = weight.square().sum()
    return StepResults([Objective(loss, {"loss": loss})], torch.autograd.grad(loss, [weight]))


def test_a_recording_gives_what_the_function_gives():
    recording = record(step_of, [torch.ones(3)])
    for value in (1.0, 2.0):
        taken = recording([torch.full((3,), value)])
        assert taken.objectives[0].terms == {"loss": torch.tensor(3 * value**2)}
        assert torch.equal(taken.new_state[0], torch.full((3,), 2 * value))


def test_a_recording_with_other_bits_is_not_used():
    calls = []

    def unsteady(given):
        calls.append(1)
        return step_of(given * len(calls))

    with pytest.raises(UnrecordableError, match="other bits"):
        record(unsteady, [torch.ones(3)])


def test_a_recording_that_spoils_its_own_constants_is_not_used():
    def pure(given):
        view = torch.ones_like(given).view(3, 1)
        view += given.view(3, 1)  # not seen as a write into what `ones_like` made
        return StepResults([Objective(view.sum(), {})], [])

    with pytest.raises(UnrecordableError, match="other bits"):
        record(pure, [torch.ones(3)])


def test_a_function_that_draws_is_refused_by_name():
    with pytest.raises(RandomNumbersError, match="draws random numbers"):
        record(lambda given: step_of(given + torch.randn(3)), [torch.ones(3)])
