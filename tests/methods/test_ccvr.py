"""CCVR: golden moments of features, their pooling, and what the last round moves."""

import numpy as np
import torch

from fedloom.core.records import get_table
from fedloom.core.tables import ClassTable
from fedloom.methods.ccvr import CCVR, Calibration, pooled, virtual_features
from fedloom.methods.contract.contexts import ServerContext
from fedloom.methods.contract.phases import Batch
from fedloom.methods.contract.sample_statistics import ClassCovariances
from golden_world import CLASS_KNOWLEDGE, EVERYBODY, GOLDEN, WORLD, golden_run, matches
from support import Recording, TinyBN, after, configured, same_bits, same_tree, world

GOLD = GOLDEN["ccvr"]
LABELS = [[0, 1, 2, 0, 1, 1, 0], [1, 1, 2, 2, 2, 0, 1], [0], [2, 2, 2, 1, 0, 2, 2, 2, 1], [], [0, 0]]


def test_golden_moments_at_the_first_weights():
    seen = {}

    class Noting(Calibration):
        def aggregate(self, server, uploads, ctx):
            seen.update(uploads)
            return super().aggregate(server, uploads, ctx)

    class Golden(CCVR):
        def closing(self):
            return Noting(self.options)

    golden_run(Golden, rounds=1, lr=0.0)  # the round moves nothing
    assert list(seen) == EVERYBODY  # all clients, whoever took part
    for client, upload in seen.items():
        assert matches({"": get_table(upload, "means").values}, {"": GOLD["means"][client]}, tolerance=2e-6)
        flat = [[number for row in matrix for number in row] for matrix in GOLD["covariances"][client]]
        assert matches({"": get_table(upload, "covariances").values}, {"": flat}, tolerance=2e-6)
    means, covariances = pooled(seen)
    assert matches({"": means.values}, {"": GOLD["pooled_means"]}, tolerance=2e-6)
    assert matches({"": covariances}, {"": GOLD["pooled_covariances"]}, tolerance=2e-6)
    counts = torch.tensor(WORLD["class_counts"]).sum(0).double()
    biased = covariances * ((counts - 1) / counts).view(-1, 1, 1)  # GGEUR divides by the number of samples
    assert matches({"": means.values}, {"": CLASS_KNOWLEDGE["ggeur"]["means"]}, tolerance=2e-6)
    assert matches({"": biased}, {"": CLASS_KNOWLEDGE["ggeur"]["covariances"]}, tolerance=2e-6)


def test_pooled_moments_are_those_of_all_samples():
    rng, statistic = np.random.default_rng(0), ClassCovariances("z")
    z = torch.from_numpy(rng.normal(5, 2, (60, 3)))  # far from 0, where a difference of squares cancels
    y = torch.from_numpy(np.repeat([0, 1, 3], 20))
    parts = torch.tensor_split(torch.from_numpy(rng.permutation(59)), 3)  # the last sample of class 3 is a client's own
    uploads = {}
    for client, rows in enumerate([*parts, torch.tensor([59])]):
        counts = torch.bincount(y[rows], minlength=4)
        sums = torch.zeros(4, 3, dtype=torch.float64).index_add(0, y[rows], z[rows])
        covariances = statistic.result(statistic.add({}, z[rows], Batch(z[rows], y[rows]), 4))
        means = ClassTable.from_sums(sums, counts).to(torch.float32)
        uploads[client] = {"means": means, "covariances": covariances, "class_counts": counts}
    means, covariances = pooled(uploads)
    assert means.held.tolist() == [True, True, False, True]
    for label in (0, 1, 3):
        assert np.allclose(means.values[label], z[y == label].mean(0), atol=1e-6)
        assert np.allclose(covariances[label], np.cov(z[y == label].numpy().T), atol=1e-5)
    assert not covariances[2].any()


def test_padded_rows_and_batches_do_not_change_covariances():
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 2)))
    y, statistic = torch.tensor([0, 0, 0, 1, 1, 0, 2]), ClassCovariances("z")
    whole = statistic.result(statistic.add({}, z, Batch(z, y), 4))
    first = statistic.add({}, z[:3], Batch(z[:3], y[:3]), 4)
    rest, mask = torch.cat([z[3:], z[:2] + 9]), torch.tensor([True] * 4 + [False] * 2)
    parts = statistic.result(statistic.add(first, rest, Batch(rest, torch.cat([y[3:], y[:2]]), mask), 4))
    assert torch.allclose(whole.values, parts.values, atol=1e-6)
    assert whole.held.tolist() == [True, True, True, False]
    assert np.allclose(whole.values[0].view(2, 2), np.cov(z[[0, 1, 2, 5]].numpy().T), atol=1e-6)
    assert not whole.values[2:].any()  # one sample, and none


def test_virtual_features_have_the_moments_of_their_class():
    toy = world(configured("ccvr"), LABELS)
    values = torch.tensor([[1.0, -2.0], [0.0, 0.0], [4.0, 3.0], [0.0, 0.0]], dtype=torch.float64)
    held = torch.tensor([True, False, True, False])
    covariances = torch.zeros(4, 2, 2, dtype=torch.float64)
    covariances[0] = torch.tensor([[2.0, 1.0], [1.0, 1.5]])
    covariances[2] = torch.tensor([[1.0, 1.0], [1.0, 1.0]])  # singular
    z, labels = virtual_features(ClassTable(values, held), covariances, 40_000, ServerContext(toy.task, 6))
    assert labels.unique(return_counts=True)[1].tolist() == [40_000, 40_000]
    for label in (0, 2):
        drawn = z[labels == label]
        assert torch.allclose(drawn.mean(0), values[label], atol=0.03)
        assert np.allclose(np.cov(drawn.numpy().T), covariances[label], atol=0.05)


def test_until_the_last_round_it_is_fedavg_and_then_the_head_alone_moves():
    ours, plain = (
        after(world(configured(name), LABELS, net=TinyBN, rounds=3, participation=0.5, engine=Recording), 2)
        for name in ("ccvr", "fedavg")
    )
    assert same_bits(ours.federation.server, plain.federation.server)
    for toy in (ours, plain):
        toy.federation.step()
    one, other = (toy.federation.server["model"] for toy in (ours, plain))
    head = ("head.weight", "head.bias")
    assert same_tree({n: v for n, v in one.items() if n not in head}, {n: v for n, v in other.items() if n not in head})
    assert all(not torch.equal(one[name], other[name]) for name in head)
    last = [done.client for done in ours.federation.engine.done][-5:]
    assert last == [0, 1, 2, 3, 5]  # everybody with data
    assert torch.isfinite(one["head.weight"]).all()


def test_calibration_mends_a_head_that_one_client_bent():
    """It calls everything class 0."""
    toy = world(
        configured("ccvr", server_lr=0.1, server_epochs=20),
        [[0] * 8 + [1] * 8, [2] * 8 + [3] * 8],
        net=TinyBN,
        rounds=1,
    )
    frozen = toy.net.functional

    def accuracy(tree):
        return float((frozen.logits(tree, toy.data.x).argmax(1) == toy.data.y).float().mean())

    bent = dict(toy.federation.server["model"])
    bent["head.bias"] = bent["head.bias"] + torch.tensor([5.0, 0, 0, 0])
    toy.federation.server = {"model": bent}
    toy.federation.method.select = lambda server, count, ctx: []  # nobody trains
    toy.federation.step()
    assert accuracy(bent) == 0.25
    assert accuracy(toy.federation.server["model"]) > 0.6
