"""Graphs of steps, dry: on the same fixed memory, and with the same checks, as on a GPU."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedloom.core.records import map_tensors
from fedloom.data.augment import Augmentation
from fedloom.engine.client_phases import Stepper
from fedloom.engine.fast.graphs import GraphStepper, dry_capture
from fedloom.methods.contract.phases import Collect, Objective, OptimizerSpec, Train
from fedloom.methods.contract.sample_statistics import ClassCovariances, ClassMeans, Moments, Rows, SampleMean
from fedloom.methods.fedavg import FedAvg
from support import FEDERATED, ROW_METHODS, TinyBN, TinyDropout, configured, sampled, world

LABELS = [[0, 1, 2, 0, 1, 1, 0] * 3, [1, 1, 2, 3, 3, 0, 1, 2], [2, 3, 2, 1, 0, 2, 2, 2, 1] * 2, [0, 0]]
NAMES = [name for name in ROW_METHODS if name in FEDERATED]
FIVE = ("fedskc", "feddw", "fedsc", "fedco2", "fedssa")


def trained(method, stepper, rounds=3, **options):
    """The tensors of the server and of all client states after some rounds, the reports' terms, and the stepper."""
    toy = world(method, LABELS, **{"net": TinyBN, "epochs": 2, "batch_size": 4, "seed": 3} | options)
    toy.worker.sampler.batches_per_block = toy.worker.sampler._of_passes.batches_per_block = 1  # as on a GPU
    toy.worker.stepper = stepper(toy.data)
    terms = [toy.federation.step().terms for _ in range(rounds)]
    tensors = []
    for record in (toy.federation.server, *(state for _, state in sorted(toy.federation.states.items()))):
        map_tensors(record, lambda tensor: tensors.append(tensor.clone()) or tensor)
    return tensors, terms, toy.worker.stepper


def plain(data):
    return Stepper()


def dry(data):
    return GraphStepper(data, dry_capture)


def assert_same_bits(ours, theirs):
    assert len(ours[0]) == len(theirs[0])
    assert all(torch.equal(a, b) for a, b in zip(ours[0], theirs[0], strict=True))
    assert ours[1] == theirs[1]


@pytest.mark.parametrize("name", sampled(NAMES, *FIVE))
def test_graphs_have_the_bits_of_plain_steps(name):
    graphs = trained(configured(name), dry)
    assert_same_bits(graphs, trained(configured(name), plain))
    assert graphs[2].replayed_steps


ADAM = OptimizerSpec(name="adam", lr=0.02, weight_decay=0.01)


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerSpec(lr=0.1),
        OptimizerSpec(lr=0.1, momentum=0.9, weight_decay=0.01),
        OptimizerSpec(lr=0.1, momentum=0.5, decay=0.9),
        OptimizerSpec(lr=0.1, decay=0.9),
        ADAM,
        OptimizerSpec(name="adam", lr=0.02, decay=0.9),
    ],
    ids=["plain", "momentum", "decaying momentum", "decaying", "adam", "decaying adam"],
)
@pytest.mark.parametrize("name", ["fedavg", "feddyn", "fedrep"])
def test_moments_and_rates_belong_to_their_client(name, optimizer):
    graphs = trained(configured(name), dry, optimizer=optimizer)
    assert_same_bits(graphs, trained(configured(name), plain, optimizer=optimizer))
    assert graphs[2].replayed_steps > graphs[2].plain_steps


def test_augmented_samples_are_fed_to_the_graph():
    options = {"shape": (1, 4, 4), "net": "logistic", "augment": Augmentation(crop=1, flip=True)}
    graphs = trained(configured("fedavg"), dry, **options)
    assert_same_bits(graphs, trained(configured("fedavg"), plain, **options))
    assert graphs[2].replayed_steps > graphs[2].plain_steps


def features(net, batch, consts):
    return net.features(batch.x)


STATISTICS = {
    "means": ClassMeans(features),
    "covariances": ClassCovariances(features),
    "mean": SampleMean(features),
    "moments": Moments(features),
}


class Collects(FedAvg):
    """FedAvg whose clients take statistics before each epoch and after the last one, and keep some of these."""

    statistics = STATISTICS

    def phases(self, start, ctx):
        return [Train(self.loss, 2, refresh=STATISTICS), Collect(self.statistics)]

    def end(self, work, state, ctx):
        means = {f"means.{name}": getattr(work.collected["means"], name) for name in ("values", "held")}
        return super().end(work, state, ctx)[0], work.collected["moments"] | means | {"mean": work.collected["mean"]}


class CollectsRows(Collects):
    statistics = STATISTICS | {"rows": Rows(features)}


def test_statistics_belong_to_their_client(monkeypatch):
    monkeypatch.setattr("fedloom.engine.batch_sampler.PASS_BATCH", 3)
    graphs = trained(Collects(), dry)
    assert_same_bits(graphs, trained(Collects(), plain))
    assert graphs[2].replayed_steps > 4 * graphs[2].plain_steps
    assert not graphs[2]._reported


def test_a_pass_whose_sums_grow_is_taken_the_plain_way_and_it_is_said_once(monkeypatch):
    monkeypatch.setattr("fedloom.engine.batch_sampler.PASS_BATCH", 3)
    graphs = trained(CollectsRows(), dry)
    assert_same_bits(graphs, trained(CollectsRows(), plain))
    assert graphs[2].replayed_steps  # those of training, and of the passes before epochs
    what = "batches of a statistics pass are taken one by one, slower and with the same numbers"
    assert graphs[2]._reported == {f"{what}: its sums may grow with each batch"}


@pytest.mark.parametrize("optimizer", [OptimizerSpec(lr=0.1), ADAM], ids=["sgd", "adam"])
def test_random_numbers_are_those_of_plain_steps(optimizer):
    options = {"net": TinyDropout, "optimizer": optimizer}
    graphs = trained(configured("fedavg"), dry, **options)
    assert_same_bits(graphs, trained(configured("fedavg"), plain, **options))
    assert graphs[2].replayed_steps > graphs[2].plain_steps


class HostNoise(FedAvg):
    """The loss has a factor that Python draws."""

    def loss(self, net, batch, consts):
        return random.random() * nn.functional.cross_entropy(net(batch.x), batch.y)


def frozen(work):
    """Repeat the host's random numbers, and draw none, as a CUDA graph does."""
    captured = random.getstate()

    def replay():
        present = random.getstate()
        random.setstate(captured)
        work()
        random.setstate(present)

    return replay


def test_steps_that_draw_from_a_generator_of_the_host_run_the_plain_way():
    graphs = trained(HostNoise(), lambda data: GraphStepper(data, frozen))
    assert_same_bits(graphs, trained(HostNoise(), plain))
    assert graphs[2].replayed_steps == 0
    assert any("a replay draws other random numbers than the step" in message for message in graphs[2]._reported)


def test_two_passes_of_a_step_are_captured_unless_they_share_random_numbers():
    graphs = trained(configured("fedsam"), dry)
    assert_same_bits(graphs, trained(configured("fedsam"), plain))
    assert graphs[2].replayed_steps > graphs[2].plain_steps
    toy = world(configured("fedsam"), LABELS, epochs=2, batch_size=4, net=TinyDropout)
    toy.worker.stepper = GraphStepper(toy.data, dry_capture)
    messages = [diagnostic.message for _ in range(3) for diagnostic in toy.federation.step().diagnostics]
    shared = "the two passes of a step share their random numbers, as those of dropout"
    assert messages == [f"steps are taken one by one, slower and with the same numbers: {shared}"]
    assert toy.worker.stepper.replayed_steps == 0


@pytest.mark.parametrize(
    ("capture", "reason"),
    [
        (lambda work: lambda: None, "a replay has other bits than the step"),
        (lambda work: (work(), torch.zeros(1).add_(1).item(), lambda: (work(), work()))[-1], "a replay has other bits"),
    ],
    ids=["nothing", "twice"],
)
def test_a_bad_capture_changes_no_number(capture, reason):
    graphs = trained(configured("fedavg"), lambda data: GraphStepper(data, capture))
    assert_same_bits(graphs, trained(configured("fedavg"), plain))
    assert graphs[2].replayed_steps == 0
    assert any(reason in message for message in graphs[2]._reported)


def full():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")


@pytest.mark.parametrize("captures", [0, 1])
def test_captures_without_memory_change_no_number(captures):
    """The first or the second capture finds memory full."""
    captured = []

    def capture(work):
        captured.append(work)
        work()
        return work if len(captured) <= captures else full()

    options = {"optimizer": OptimizerSpec(lr=0.1, momentum=0.9)}
    graphs = trained(Collects(), lambda data: GraphStepper(data, capture), **options)
    assert_same_bits(graphs, trained(Collects(), plain, **options))
    assert len(captured) == captures + 1
    assert_memory_was_full(graphs)


class Cubic(FedAvg):
    """The loss has a term and a constant that differs by client."""

    def begin(self, down, state, ctx):
        return replace(super().begin(down, state, ctx), consts={"scale": torch.tensor(1.0 + ctx.client)})

    def loss(self, net, batch, consts):
        z = net(batch.x)
        loss, cubic = nn.functional.cross_entropy(z, batch.y), consts["scale"] * z.abs().pow(3).mean()
        return Objective(loss + 0.01 * cubic, terms={"loss": loss, "cubic": cubic})


@pytest.mark.parametrize("replays", [1, 2, 5, 12])
@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": ADAM},
        {"net": TinyDropout},
        {"shape": (1, 4, 4), "net": "logistic", "augment": Augmentation(crop=1, flip=True)},
    ],
    ids=["adam", "dropout", "augmented"],
)
@pytest.mark.parametrize("method", [Collects, Cubic])
def test_replays_without_memory_change_no_number(method, options, replays):
    """Memory is full after some replays, the first one of which belongs to the check of a graph."""
    count = []

    def capture(work):
        return lambda: full() if len(count) > replays else (count.append(work), work())

    graphs = trained(method(), lambda data: GraphStepper(data, capture), **options)
    assert_same_bits(graphs, trained(method(), plain, **options))
    assert_memory_was_full(graphs)


def assert_memory_was_full(graphs):
    reason = "the device has too little memory for graphs of them (CUDA out of memory. Tried to allocate 1 GiB)"
    assert graphs[2]._reported == {f"steps are taken one by one, slower and with the same numbers: {reason}"}
    assert not graphs[2]._kinds


def test_a_capture_that_runs_the_step_several_times_leaves_no_trace():
    def capture(work):
        for _ in range(3):
            work()
        return work

    options = {"net": TinyDropout, "optimizer": ADAM}
    graphs = trained(Collects(), lambda data: GraphStepper(data, capture), **options)
    assert_same_bits(graphs, trained(Collects(), plain, **options))
    assert graphs[2].replayed_steps


def test_constants_are_those_of_the_client_that_trains():
    graphs = trained(Cubic(), dry)
    assert_same_bits(graphs, trained(Cubic(), plain))
    assert graphs[2].replayed_steps > graphs[2].plain_steps
    assert set(graphs[1][-1]) >= {"loss", "cubic"}


def test_kinds_that_were_met_long_ago_are_dropped(monkeypatch):
    monkeypatch.setattr("fedloom.engine.fast.graphs.MAX_KINDS", 1)
    graphs = trained(configured("fedrep"), dry)  # two kinds of phases
    assert_same_bits(graphs, trained(configured("fedrep"), plain))
    assert len(graphs[2]._kinds) == 1


def test_the_log_of_objectives_may_be_shorter_than_an_epoch(monkeypatch):
    monkeypatch.setattr("fedloom.engine.fast.graphs._LOGGED", 2)
    assert_same_bits(trained(configured("fedsc"), dry), trained(configured("fedsc"), plain))
