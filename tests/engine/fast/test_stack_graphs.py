"""Graphs of stacks, dry: on the same fixed memory, and with the same checks, as on a GPU."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedloom.core.records import map_tensors
from fedloom.data.augment import Augmentation
from fedloom.engine.fast.graphs import dry_capture
from fedloom.engine.fast.stack_graphs import StackGraphs
from fedloom.engine.stacked import Batched
from fedloom.engine.stacked.training import StackedTraining
from fedloom.methods.contract.phases import Objective, OptimizerSpec
from fedloom.methods.fedavg import FedAvg
from stacked_world import DoubleBN
from support import Tiny, TinyBN, configured, world

UNEQUAL = [[0, 1, 2, 0, 1, 1, 0] * 3, [1, 1, 2, 3, 3, 0, 1, 2], [2, 3, 2, 1, 0, 2, 2, 2, 1] * 2, [0, 0], [3, 1, 2] * 3]
EQUAL = [[0, 1, 2, 3] * 3, [1, 1, 2, 2] * 3, [3, 3, 0, 1] * 3, [2, 0, 2, 1] * 3]
REST = ("fedskc", "feddw", "fedssa", "scaffold", "fedprox", "fedrep", "fedsam")
NAMES = ["fedavg", "fedsc", "fedco2", *(pytest.param(name, marks=pytest.mark.matrix) for name in REST)]
MOMENTUM = OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=0.01)


def trained(method, capture, labels=UNEQUAL, rounds=4, stack=64, **options):
    """The tensors of the server and of all client states after some rounds, the reports, and the graphs."""
    toy = world(method, labels, **{"net": TinyBN, "epochs": 2, "seed": 3} | options)
    engine = toy.federation.engine = Batched(toy.worker, stack)
    engine.fast = StackGraphs(toy.data, stack, capture) if capture else None
    reports = [toy.federation.step() for _ in range(rounds)]
    tensors = []
    for record in (toy.federation.server, *(state for _, state in sorted(toy.federation.states.items()))):
        map_tensors(record, lambda tensor: tensors.append(tensor.clone()) or tensor)
    return tensors, reports, engine.fast


def agree(method, *, capture=dry_capture, tolerance=1e-6, **options):
    """Stacks with and without graphs: the same counts and (nearly) numbers. Return the graphs."""
    ours, theirs = (trained(method, each, **options) for each in (capture, None))
    for a, b in zip(ours[0], theirs[0], strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert (one.steps, one.samples) == (other.steps, other.samples)
        assert one.terms == (other.terms if not tolerance else pytest.approx(other.terms, rel=1e-5, abs=1e-6))
    return ours[2]


@pytest.mark.parametrize("labels", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("name", NAMES)
def test_methods_agree_with_stacks_without_graphs(name, labels):
    graphs = agree(configured(name), labels=labels)
    assert graphs.replayed_steps
    assert not graphs._notes


@pytest.mark.parametrize("name", NAMES)
def test_full_stacks_have_the_same_bits(name):
    assert agree(configured(name), labels=EQUAL, tolerance=0).replayed_steps


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_that_narrows_to_its_half_keeps_the_bits(name):
    labels = [[0, 1, 2, 3] * 4, [1, 1, 2, 2] * 4, [3, 3, 0, 1] * 2, [2, 0, 2, 1] * 2]
    graphs = agree(configured(name), labels=labels, tolerance=0, rounds=3)
    assert {width for program in graphs._programs.values() for width, _ in program.steps} == {2, 4}


@pytest.mark.parametrize(
    "optimizer",
    [OptimizerSpec(lr=0.1), MOMENTUM, OptimizerSpec(lr=0.1, momentum=0.5, decay=0.9)],
    ids=["plain", "momentum", "decaying momentum"],
)
@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_moments_and_rates_belong_to_their_client(name, optimizer):
    assert agree(configured(name), optimizer=optimizer).replayed_steps
    assert agree(configured(name), optimizer=optimizer, labels=EQUAL, tolerance=0).replayed_steps


@pytest.mark.parametrize("options", [{"stack": 3}, {"participation": 0.6}], ids=str)
@pytest.mark.parametrize("name", ["fedavg", "fedsc", "scaffold"])
def test_smaller_stacks_use_the_memory_of_larger_ones(name, options):
    graphs = agree(configured(name), net=DoubleBN, rounds=6, **options)
    assert graphs.replayed_steps
    assert all(program.width == options.get("stack", 5) for program in graphs._programs.values())


@pytest.mark.parametrize("name", ["fedskc", "fedsc"])
def test_refreshed_constants_reach_the_graphs(name):
    assert agree(configured(name, "sound", scale="dataset"), epochs=3, labels=EQUAL, tolerance=0).replayed_steps
    assert agree(configured(name, "sound", scale="dataset"), epochs=3).replayed_steps


@pytest.mark.parametrize("name", ["fedavg", "fedco2"])
def test_the_tables_may_be_shorter_than_a_phase(name, monkeypatch):
    monkeypatch.setattr("fedloom.engine.fast.stack_graphs._ROWS", 3)
    assert agree(configured(name), optimizer=MOMENTUM).replayed_steps
    assert agree(configured(name), optimizer=MOMENTUM, labels=EQUAL, tolerance=0).replayed_steps


def test_kinds_that_were_met_long_ago_are_dropped(monkeypatch):
    monkeypatch.setattr("fedloom.engine.fast.stack_graphs._MAX_KINDS", 1)
    assert len(agree(configured("fedrep"))._programs) == 1  # two kinds of phases


class Drifting(Tiny):
    """Buffers of numbers and of truth values change with each batch, one by assignment."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(6, dtype=torch.bool))

    def features(self, x):
        z = super().features(x)
        if self.training:
            self.total = self.total + self.fc.weight.detach().sum()
            self.seen.logical_or_(self.fc.weight.detach()[:, 0] > 0.1)
        return z


class Cubic(FedAvg):
    """The loss has a term and a constant that differs by client."""

    def begin(self, down, state, ctx):
        return replace(super().begin(down, state, ctx), consts={"scale": torch.tensor(1.0 + ctx.client)})

    def loss(self, net, batch, consts):
        z = net(batch.x)
        loss, cubic = (
            batch.mean(nn.functional.cross_entropy(z, batch.y, reduction="none")),
            batch.mean(z.abs().pow(3).mean(1)),
        )
        return Objective(loss + 0.01 * consts["scale"] * cubic, terms={"loss": loss, "cubic": cubic})


@pytest.mark.parametrize(
    ("method", "net"), [(configured("fedbn"), Drifting), (Cubic(), TinyBN)], ids=["buffers", "consts"]
)
def test_buffers_and_constants_are_those_of_each_client(method, net):
    assert agree(method, net=net, optimizer=MOMENTUM).replayed_steps
    assert agree(method, net=net, optimizer=MOMENTUM, labels=EQUAL, tolerance=0).replayed_steps


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"augment": Augmentation(crop=1, flip=True), "shape": (1, 4, 4), "net": "logistic"}, "samples are augmented"),
        ({"optimizer": OptimizerSpec(name="adam", lr=0.01)}, "Adam's corrections"),
    ],
    ids=["augmented", "adam"],
)
def test_what_cannot_be_captured_runs_the_plain_way_and_it_is_said_once(options, reason):
    assert agree(configured("fedavg"), tolerance=0, **options).replayed_steps == 0
    reports = trained(configured("fedavg"), dry_capture, **options)[1]
    messages = [diagnostic.message for report in reports for diagnostic in report.diagnostics]
    assert len(messages) == 1
    assert messages[0].startswith(f"steps of stacks are taken one by one, slower: {reason}")


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (lambda work: lambda: None, "a replay has other bits than the step"),
        (lambda work: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory")), "CUDA out of memory"),
        (lambda work: lambda: (work(), work()), "a replay has other bits"),
    ],
    ids=["nothing", "memory", "twice"],
)
@pytest.mark.parametrize("name", ["fedavg", "fedsc"])
def test_a_bad_capture_changes_no_number(name, capture, reason):
    graphs = agree(configured(name), capture=capture, labels=EQUAL, optimizer=MOMENTUM, tolerance=0)
    assert graphs.replayed_steps == 0
    assert all(reason in message for message in graphs._notes)
    assert agree(configured(name, "sound"), capture=capture).replayed_steps == 0


def test_a_capture_that_runs_the_step_several_times_leaves_no_trace():
    def capture(work):
        for _ in range(3):
            work()
        return work

    assert agree(configured("fedsc"), capture=capture, labels=EQUAL, optimizer=MOMENTUM, tolerance=0).replayed_steps


def test_memory_is_freed_when_a_stack_is_too_large(monkeypatch):
    toy = world(configured("fedavg"), UNEQUAL, net=TinyBN)
    engine = toy.federation.engine = Batched(toy.worker, 4)
    engine.fast = StackGraphs(toy.data, 4, dry_capture)
    toy.federation.step()
    run, cleared = StackedTraining.run, []
    monkeypatch.setattr(engine.fast, "clear", cleared.append)

    def limited(training):
        if len(training.clients) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(training)

    monkeypatch.setattr(StackedTraining, "run", limited)
    toy.federation.step()
    assert cleared == [2]
    assert engine.stack == 2


def test_a_run_that_goes_on_elsewhere_has_the_same_bits():
    """The first steps of a kind, before the capture, have the width and the memory of all others."""

    def run(fresh):
        toy = world(configured("fedsc"), UNEQUAL, net=TinyBN, epochs=2, optimizer=MOMENTUM, participation=0.6)
        engine = toy.federation.engine = Batched(toy.worker, 64)
        engine.fast = StackGraphs(toy.data, 64, dry_capture)
        for _ in range(5):
            toy.federation.step()
            if fresh:
                engine.fast.clear(64)
        return [value for _, value in sorted(toy.federation.server["model"].items())]

    assert all(map(torch.equal, run(fresh=False), run(fresh=True)))


def test_the_cpu_has_no_graphs():
    assert Batched(world(configured("fedavg"), UNEQUAL).worker, 4).fast is None
