"""Augmentation in the loop: which batches it reaches, what its draws depend on, and that runs stay reproducible."""

import dataclasses

import numpy as np
import pytest
import torch

import fedloom
from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.augment import Augmentation
from fedloom.engine import LocalTraining, Worker
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Collect, Objective, Train
from fedloom.methods.contract.sample_statistics import ClassMeans
from fedloom.nets.net import Net
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from support import PLAIN_SGD, after, alike, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0], [3, 2, 1]]
SHAPE = (1, 8, 8)
AUGMENT = Augmentation(crop=2, flip=True, rotate=10)


class Watching(Method):
    """FedAvg with a statistics pass before, within and after training; notes the inputs that each of them sees."""

    def __init__(self, options=None):
        super().__init__(options)
        self.trained, self.passed = [], []

    def loss(self, net, batch, consts):
        self.trained.append(batch.x.clone())
        return super().loss(net, batch, consts)

    def phases(self, start, ctx):
        def of(net, batch, consts):
            self.passed.append(batch.x.clone())
            return net.features(batch.x)

        train = Train(self.loss, ctx.task.local_epochs, refresh={"before": ClassMeans(of)})
        return [Collect({"first": ClassMeans(of)}), train, Collect({"last": ClassMeans(of)})]


def federation(method=None, augment=AUGMENT, labels=LABELS, net="mlp", **keys):
    toy = world(method or Watching(), labels, net=net, shape=SHAPE, batch_size=3, **keys)
    toy.worker.sampler.local_training = dataclasses.replace(toy.worker.local_training, augment=augment)
    return toy


def test_training_batches_are_those_of_the_clients_stream():
    toy = federation(epochs=2)
    toy.worker.run(toy.job(0, round_=4))
    order, rng = (Streams(3).numpy(purpose, 4, 0) for purpose in ("shuffle", "augment"))
    expected = []
    for _ in range(2):
        shuffled = toy.scenario.train.tensor(0)[torch.from_numpy(order.permutation(7))]
        expected += [AUGMENT.gather(toy.data, part, rng) for part in torch.split(shuffled, 3)]
    assert len(toy.method.trained) == len(expected) == 6
    assert all(torch.equal(a, b) for a, b in zip(toy.method.trained, expected, strict=True))


def test_statistics_passes_see_the_samples_as_they_are():
    toy = federation(epochs=2)
    toy.worker.run(toy.job(0))
    x, _ = toy.samples(0)
    assert len(toy.method.passed) == 4  # before, ahead of each of two epochs, after
    assert all(torch.equal(seen, x) for seen in toy.method.passed)


def test_without_augmentation_training_sees_the_samples_as_they_are():
    toy = federation(augment=Augmentation())
    toy.worker.run(toy.job(0))
    x, _ = toy.samples(0)
    assert all((row == x).flatten(1).all(1).any() for batch in toy.method.trained for row in batch)


class Normed(Net):
    """Pixels, batch-normalised, into a linear head."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)
        self.head = torch.nn.Linear(64, 4)

    def features(self, x):
        return self.norm(x.flatten(1))


def test_the_statistic_of_a_sample_that_cannot_be_trained_on_is_of_the_sample_as_it_is():
    class Tapped(Watching):
        def loss(self, net, batch, consts):
            return Objective(super().loss(net, batch, consts), taps={"x": batch.x.flatten(1)})

        def phases(self, start, ctx):
            return [Train(self.loss, 2, collect={"means": ClassMeans("x")})]

    toy = federation(Tapped(), labels=[[1], [2, 2]], net=Normed)
    done = toy.worker.run(toy.job(0))  # one sample under batch norm makes no step, but a statistic
    assert done.steps == 0
    assert torch.equal(torch.cat(toy.method.trained), toy.samples(0)[0])


def test_a_clients_draws_depend_on_seed_round_and_client_alone():
    def inputs(client=0, round_=1, **keys):
        toy = federation(**keys)
        toy.worker.run(toy.job(client, round_=round_))
        return torch.cat(toy.method.trained)

    same = [LABELS[0]] * 3
    base = inputs(labels=same)
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    assert torch.equal(base, inputs(labels=same))
    assert torch.equal(base, inputs(labels=same, method=type("Other", (Watching,), {})()))
    others = [inputs(labels=same, client=1), inputs(labels=same, round_=2), inputs(labels=same, seed=4)]
    assert not any(torch.equal(base, other) for other in others)


def test_the_order_of_clients_does_not_matter():
    toys = [federation(Method(), epochs=2) for _ in range(2)]
    assert alike(after(toys[0], 3), after(toys[1], 3, "backwards"), "serial")


def test_a_worker_refuses_what_does_not_fit_its_data():
    toy = world(Method(), LABELS)
    with pytest.raises(ConfigError, match=r"augment \(flip\): needs images"):
        Worker(Method(), [toy.net], toy.data, LocalTraining(4, PLAIN_SGD, Augmentation(flip=True)))


# -- whole runs --------------------------------------------------------------------------------------------------------
def small(**augment):
    return parse(
        {
            "scenario": {"source": "digits", "partition": "iid", "clients": 3},
            "rounds": 3,
            "local_epochs": 1,
            "participation": 0.7,
            "checkpoint": {"seconds": 0},
            "augment": augment,
        }
    )


class Stop(Callback):
    """Ends a run after its first round, as a crash would."""

    def on_round(self, config, round_, rows):
        raise ConnectionError("power cut")


def test_runs_with_augmentation_give_the_same_bits_resumed_or_not(tmp_path):
    config = small(crop=1, flip=True, rotate=10)
    whole, again = (run(config, out=tmp_path / name) for name in ("a", "b"))
    with pytest.raises(ConnectionError):
        run(config, out=tmp_path / "c", callbacks=[Stop()])
    resumed = run(config, out=tmp_path / "c", existing="resume")
    digests = {r.numbers["checkpoint_sha256"] for r in (whole, again, resumed)}
    assert len(digests) == 1
    assert run(small(), out=tmp_path / "d").numbers["checkpoint_sha256"] not in digests
    assert run(small(crop=1), out=tmp_path / "e").numbers["fingerprint"] != whole.numbers["fingerprint"]
    assert whole.config["augment"] == {"crop": 1, "flip": True, "rotate": 10.0, "per": "sample", "fill": "black"}


@pytest.mark.parametrize(
    ("augment", "message"),
    [
        ({"crop": -1}, "augment.crop = -1: input should be greater than or equal to 0"),
        ({"rotate": 200}, "augment.rotate = 200: input should be less than or equal to 180"),
        ({"per": "image"}, "augment.per = 'image': input should be 'sample' or 'batch'"),
        ({"crp": 1}, "unknown key 'augment.crp': did you mean 'crop'?"),
        ({"crop": 8}, "augment.crop = 8: images are 8 x 8 pixels"),
    ],
)
def test_a_bad_config_is_refused_in_one_line(augment, message):
    with pytest.raises(ConfigError) as caught:
        run(small(**augment))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_data_that_are_no_images_are_refused_before_training():
    toy = world(Method(), LABELS)
    with pytest.raises(ConfigError, match=r"augment \(crop\): needs images .* shape \(5,\) and dtype float32"):
        fedloom.run(scenario=toy.scenario, model="mlp", rounds=1, augment={"crop": 1})
