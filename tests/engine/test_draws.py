"""Random numbers in losses, and two augmented views: the same on every engine, in any order, resumed or not."""

import dataclasses

import pytest
import torch

from fedloom.core.errors import ClientError, ConfigError
from fedloom.core.streams import Streams
from fedloom.data.augment import Augmentation
from fedloom.engine import LocalTraining, Worker
from fedloom.engine.stacked import members
from fedloom.methods.contract.method import Method
from fedloom.methods.contract.phases import Collect, Train, cross_entropy
from fedloom.methods.contract.sample_statistics import SampleMean
from fedloom.methods.contract.spec import Spec
from support import EVERY_ENGINE, PLAIN_SGD, TinyBN, after, alike, furthest, same_bits, same_on, world

LABELS = [[0, 1, 2, 3, 0, 1, 2], [1, 1, 0, 2], [3, 2, 1, 0, 0], [1, 1, 0, 2]]
SHAPE = (1, 8, 8)
AUGMENT = Augmentation(crop=2, flip=True)


# -- random numbers in a loss ------------------------------------------------------------------------------------------
class Noisy(Method):
    """Inputs with noise of the loss's own."""

    def loss(self, net, batch, consts):
        noise = torch.randn(batch.x.shape)
        self.note(noise)
        return batch.mean(cross_entropy(net(batch.x + 0.5 * noise), batch.y))

    def note(self, noise):
        pass


@pytest.mark.parametrize("engine", ["backwards", "serial"])
def test_they_do_not_depend_on_the_order_of_clients_or_on_what_was_drawn_before(engine):
    toys = [world(Noisy(), LABELS, net=TinyBN, epochs=2) for _ in range(2)]
    after(toys[0], 3)
    torch.manual_seed(99)
    assert alike(toys[0], after(toys[1], 3, engine), "serial")


def test_they_are_those_of_a_run_that_was_cut():
    whole, first, second = (world(Noisy(), LABELS, epochs=2) for _ in range(3))
    after(whole, 4)
    after(first, 2)
    second.federation.round, second.federation.server = 2, dict(first.federation.server)
    after(second, 2)
    assert same_bits(whole.federation.server, second.federation.server)


def test_they_differ_between_steps_clients_rounds_and_seeds():
    seen = []

    class Noting(Noisy):
        def note(self, noise):
            seen.append(noise.clone())

    def drawn(client=1, round_=1, seed=3):
        seen.clear()
        toy = world(Noting(), LABELS, seed=seed, epochs=2)
        toy.worker.run(toy.job(client, round_=round_))
        return torch.stack(seen)

    first = drawn()
    assert torch.equal(first, drawn())
    assert not torch.equal(first[0], first[1])
    assert not any(torch.equal(first, other) for other in (drawn(client=3), drawn(round_=2), drawn(seed=4)))


def test_the_global_generator_stays_as_it_was():
    toy = world(Noisy(), LABELS)
    before = torch.get_rng_state()
    toy.federation.step()
    assert torch.equal(torch.get_rng_state(), before)


def test_stacks_refuse_them():
    """One stream for several clients would be nobody's."""
    with pytest.raises(ClientError, match="random"):
        after(world(Noisy(), [LABELS[1]] * 2), 1, "stacked")


# -- two views ---------------------------------------------------------------------------------------------------------
class Twice(Method):
    """Cross-entropy on one view, and the distance between the logits of both."""

    spec = Spec(views=2)

    def loss(self, net, batch, consts):
        self.note(batch)
        first, second = net(batch.x), net(batch.second)
        return batch.mean(cross_entropy(first, batch.y) + 0.1 * (first - second).square().sum(1))

    def note(self, batch):
        pass


class Noting(Twice):
    def __init__(self):
        super().__init__()
        self.seen = []

    def note(self, batch):
        self.seen.append((batch.x.clone(), batch.second.clone(), batch.y.clone()))


def images(method, **keys):
    return world(method, LABELS, net="mlp", shape=SHAPE, batch_size=3, **{"augment": AUGMENT} | keys)


def test_the_second_view_is_of_the_same_samples_and_another_draw():
    toy = images(Noting(), epochs=2)
    toy.worker.run(toy.job(0, round_=4))
    order, rng = (Streams(3).numpy(purpose, 4, 0) for purpose in ("shuffle", "augment"))
    expected = []
    for _ in range(2):
        shuffled = toy.scenario.train.tensor(0)[torch.from_numpy(order.permutation(7))]
        for part in torch.split(shuffled, 3):
            expected.append(
                [AUGMENT.gather(toy.data, part, rng), AUGMENT.gather(toy.data, part, rng), toy.data.y[part]]
            )
    assert len(toy.method.seen) == 6
    for ours, theirs in zip(toy.method.seen, expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert all(not torch.equal(x, second) for x, second, _ in toy.method.seen)


def test_without_a_second_view_there_is_none():
    class One(Method):
        def loss(self, net, batch, consts):
            assert batch.second is None
            return super().loss(net, batch, consts)

    after(images(One()), 1)


def test_statistics_have_no_second_view():
    class Collects(Twice):
        def phases(self, start, ctx):
            def of(net, batch, consts):
                assert batch.second is None
                return net.features(batch.x)

            return [Collect({"mean": SampleMean(of)}), Train(self.loss, 1, refresh={"fresh": SampleMean(of)})]

    after(images(Collects()), 1)


@pytest.mark.parametrize("engine", EVERY_ENGINE[1:])
def test_every_engine_has_the_same_views(engine):
    settings = {"net": "mlp", "shape": SHAPE, "batch_size": 3, "augment": AUGMENT, "epochs": 2}
    toy = same_on(engine, Twice(), LABELS, 3, **settings)
    other = after(images(Twice(), epochs=2, seed=4), 3)
    assert furthest(toy.federation.server["model"], other.federation.server["model"]) > 1e-3


def test_stacks_draw_what_each_client_would():
    """Batches of a stack, the padded ones too, beside those of clients one by one."""
    alone = images(Noting())
    for client in range(4):
        alone.worker.run(alone.job(client))
    together = images(Twice())
    seen, plain = [], members.batch_of

    def noting(worker, samples, draws=None):
        batch = plain(worker, samples, draws)
        for row, own in enumerate(samples):
            seen.append((batch.x[row][: len(own)], batch.second[row][: len(own)], batch.y[row][: len(own)]))
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "batch_of", noting)
        after(together, 1, "stacked")
    assert len(seen) == len(alone.method.seen)

    def key(views):
        return tuple(float(value.double().sum()) for value in views)

    assert sorted(map(key, seen)) == sorted(map(key, alone.method.seen))


def test_two_views_without_augmentation_are_refused():
    toy = images(Method())
    with pytest.raises(ConfigError, match=r"twice compares two augmented views of each sample, and augment is off"):
        Worker(Twice(), [toy.net], toy.data, LocalTraining(3, PLAIN_SGD))
    Worker(Twice(), [toy.net], toy.data, dataclasses.replace(toy.worker.local_training, augment=AUGMENT))
