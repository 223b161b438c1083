"""Statistics passes that are replayed in C++: the bits of plain ones, for every statistic and number of batches."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fedloom.engine.fast.kernels.compiling import compiler
from fedloom.methods.contract.phases import Collect, Train
from fedloom.methods.contract.sample_statistics import ClassCovariances, ClassMeans, Moments, Rows, SampleMean
from fedloom.methods.fedavg import FedAvg
from support import TinyBN, TinyDropout, after, configured, handmade, same_on, sampled, world

# Passes of one, two, three and four batches; the sizes of the last ones differ, and come twice.
LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0, 1, 1, 2, 3, 0], [1, 2, 0], [0, 1, 2, 2, 1, 3, 3, 0, 2]]
pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def _short_passes(monkeypatch):
    monkeypatch.setattr("fedloom.engine.batch_sampler.PASS_BATCH", 3)


def features(net, batch, consts):
    return net.features(batch.x)


def inputs(net, batch, consts):
    return batch.x


@dataclass(frozen=True)
class Last:
    """A plug-in's statistic whose sums are the batch itself, a constant, and a number that changes in place."""

    of: object

    def add(self, sums, values, batch, num_classes):
        count = sums["count"].add_(1) if sums else torch.zeros(())
        return {"values": values, "labels": batch.y.view(-1, 1), "count": count}

    def result(self, sums):
        return dict(sums)


STATISTICS = {
    "means": ClassMeans(features),
    "covariances": ClassCovariances(features),
    "mean": SampleMean(features),
    "moments": Moments(features),
    "rows": Rows(features),
    "last": Last(inputs),
}


class Collects(FedAvg):
    """FedAvg whose clients take every statistic before each epoch and behind the last one, and keep those."""

    def phases(self, start, ctx):
        return [Train(self.loss, 2, refresh=STATISTICS), Collect(STATISTICS)]

    def end(self, work, state, ctx):
        payload, _ = super().end(work, state, ctx)
        kept = {f"{name}.{entry}": tensor for name in STATISTICS for entry, tensor in entries_of(work.collected[name])}
        return payload, kept


def entries_of(result):
    if isinstance(result, Tensor):
        return [("", result)]
    if isinstance(result, dict):
        return list(result.items())
    return [(name, getattr(result, name)) for name in ("values", "held", "labels") if hasattr(result, name)]


@pytest.mark.parametrize(("net", "engine"), [(TinyBN, "threads"), (TinyDropout, "replayed")])
def test_every_statistic_has_the_bits_of_plain_passes(net, engine):
    stepper = same_on(engine, Collects(), LABELS, 3, net=net).worker.stepper
    # 15 passes a round have 40 batches; each kind of batch and size is plain once
    assert stepper.plain_steps < 30 < stepper.replayed_steps


@pytest.mark.parametrize("name", sampled(["fedskc", "fedsc", "feddw", "fedproto", "pfedfda"], "fedskc"))
def test_no_batch_of_a_pass_needs_python_once_all_sizes_came(name):
    toy = after(world(handmade(name), LABELS, rounds=3), 3, "threads")
    toy.worker.stepper.replayed_share()
    after(toy, 1, "threads")
    assert toy.worker.stepper.replayed_share() == 1.0


@dataclass(frozen=True)
class ByBatch(ClassMeans):
    """A plug-in's statistic, derived from a built-in one: it keeps the sums of the last two batches, each by itself."""

    def add(self, sums, values, batch, num_classes):
        number = 1 + max((int(name[0]) for name in sums), default=0)
        kept = {name: part for name, part in sums.items() if int(name[0]) == number - 1}
        fresh = super().add({}, values, batch, num_classes)
        return kept | {f"{number}.{name}": part for name, part in fresh.items()}

    def result(self, sums):
        return dict(sums)


class CollectsByBatch(FedAvg):
    """FedAvg whose clients keep the sums of such a statistic."""

    def phases(self, start, ctx):
        return [*super().phases(start, ctx), Collect({"by": ByBatch(features)})]

    def end(self, work, state, ctx):
        return super().end(work, state, ctx)[0], dict(work.collected["by"])


def test_a_statistic_derived_from_a_built_in_one_has_the_bits_of_plain_passes():
    toy = same_on("replayed", CollectsByBatch(), LABELS)
    of_four_batches = {"3.sums", "3.counts", "4.sums", "4.counts"}
    assert {*toy.federation.states[2]} == of_four_batches  # sums that a batch leaves out are gone


class LooksAtValues(FedAvg):
    """A pass that cannot be recorded, behind steps that can."""

    def phases(self, start, ctx):
        def scaled(net, batch, consts):
            z = net.features(batch.x)
            return z * 2 if float(z.sum()) > 0 else z

        return [*super().phases(start, ctx), Collect({"mean": SampleMean(scaled)})]


def test_a_pass_that_cannot_be_replayed_is_said_once_and_steps_are_replayed():
    toy = same_on("threads", LooksAtValues(), LABELS, 3)
    notes = [note for report in toy.reports for note in report.diagnostics if note.code == "engine.plain_steps"]
    assert [note.message for note in notes] == [
        "batches of a statistics pass are taken one by one, slower and with the same numbers: "
        "the loss or the net depends on values (aten._local_scalar_dense.default)"
    ]
    assert toy.worker.stepper.replayed_steps > 10


def test_a_pass_over_no_step_of_training_has_the_bits_of_a_plain_one():
    """A client whose training takes no step, and a method that trains nothing."""
    assert same_on("threads", configured("fedncm"), LABELS, 3, net=TinyBN).worker.stepper.replayed_steps > 0
