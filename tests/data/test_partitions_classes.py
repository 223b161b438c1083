"""NID2, classes per client, pathological, Pachinko: the counts of the papers."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.streams import Streams
from fedloom.data.partitions import labels_only
from fedloom.data.partitions.classes import NID2, Classes, Pachinko, Pathological
from fedloom.data.sources.cifar import CLASSES as NAMES
from fedloom.data.sources.cifar import SUPERCLASSES, coarse_labels

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "data.json").read_text())
CIFAR10 = labels_only(np.repeat(np.arange(10), 5000)), labels_only(np.repeat(np.arange(10), 1000))
CIFAR100 = labels_only(np.repeat(np.arange(100), 500), NAMES), labels_only(np.repeat(np.arange(100), 100), NAMES)


def deal(partition, data, clients, seed=0):
    train, test = data
    return partition.deal(train, test, clients, Streams(seed).numpy("partition"))


def counts(views, data):
    return views.class_counts(data.y.numpy(), data.num_classes)


@pytest.mark.parametrize("classes", [5, 10])
def test_nid2_counts_of_the_golden_file(classes):
    data = labels_only(np.random.default_rng(0).permutation(np.repeat(np.arange(classes), 12)))
    dealt = deal(NID2(), (data, data), 6)
    assert counts(dealt.train, data).tolist() == GOLDEN[f"nid2_C{classes}_nc12"]
    assert counts(dealt.test, data).tolist() == GOLDEN[f"nid2_C{classes}_nc12"]


def test_nid2_on_cifar10_gives_8330_to_each():
    assert deal(NID2(), CIFAR10, 6).train.sizes.tolist() == [8330] * 6


def test_nid2_that_cannot_be_made():
    with pytest.raises(ConfigError, match=r"scenario\.clients = 10: partition nid2 has .*; need clients=6"):
        deal(NID2(), CIFAR10, 10)
    six = labels_only(np.arange(60) % 6)
    with pytest.raises(ConfigError, match="need a multiple of 5 classes, the source has 6"):
        deal(NID2(), (six, six), 6)
    few = labels_only(np.arange(25) % 5)
    with pytest.raises(ConfigError, match="class 0 has 5 training samples; 6 clients need 6 or more"):
        deal(NID2(), (few, few), 6)


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12), st.integers(0, 100))
def test_holders_every_client_and_every_class_has_its_number(per_client, clients, classes, seed):
    rng = np.random.default_rng(seed)
    if per_client > classes or per_client * clients % classes:
        with pytest.raises(ConfigError):
            Classes(classes_per_client=per_client).choose_holders(clients, classes, rng)
        return
    holders = Classes(classes_per_client=per_client).choose_holders(clients, classes, rng)
    assert holders.shape == (classes, per_client * clients // classes)
    assert all(len(set(of_class.tolist())) == len(of_class) for of_class in holders)
    assert np.bincount(holders.reshape(-1), minlength=clients).tolist() == [per_client] * clients


def test_choices_follow_the_places_left():
    """Fed-CO2's rule: no class is taken again while another has more places left."""
    holders = Classes(classes_per_client=2).choose_holders(20, 10, np.random.default_rng(0))
    chosen = [[c for c in range(10) if k in holders[c]] for k in range(20)]
    for start in range(0, 20, 5):  # five clients use up the ten classes
        assert sorted(itertools.chain(*chosen[start : start + 5])) == list(range(10))


@pytest.mark.parametrize(("data", "per_client", "holders"), [(CIFAR10, 2, 20), (CIFAR100, 10, 10)])
def test_pathological_counts_of_fedco2(data, per_client, holders):
    """N = 100: 20 or 10 clients per class; shares from .4 / (.4 + .6 (k-1)) to .6 / (.6 + .4 (k-1))."""
    train, test = data
    dealt = deal(Pathological(classes_per_client=per_client), data, 100)
    held, tested = counts(dealt.train, train), counts(dealt.test, test)
    assert ((held > 0).sum(1) == per_client).all()
    assert ((held > 0).sum(0) == holders).all()
    available = held.sum(0)
    assert (available <= len(train) // train.num_classes).all()
    assert (available > len(train) // train.num_classes - holders).all()
    shares = held[held > 0] / (len(train) // train.num_classes)
    low, high = 0.4 / (0.4 + 0.6 * (holders - 1)), 0.6 / (0.6 + 0.4 * (holders - 1))
    assert low - 0.002 < shares.min() < shares.max() < high
    assert shares.max() / shares.min() > 1.2
    # the same share of the test set, both rounded down
    ratio = len(train) // len(test)
    assert (np.abs(held / ratio - tested) <= 1 + 1 / ratio).all()


def test_pathological_share_of_the_golden_file(monkeypatch):
    example = GOLDEN["pathological_share"]
    data = labels_only(np.zeros(example["in"]["n_class"], np.int64))

    class Fixed:
        """A generator whose uniform draws are those of the example."""

        def __init__(self):
            self.real = np.random.default_rng(0)

        def __getattr__(self, name):
            return getattr(self.real, name)

        def uniform(self, low, high, size):
            assert (low, high, size) == (0.4, 0.6, (3,))
            return np.array(example["in"]["q"])

    dealt = Pathological(classes_per_client=1).deal(data, data, 3, Fixed())
    assert dealt.train.sizes.tolist() == example["out"]["counts"]


@pytest.mark.parametrize(
    ("data", "per_client", "clients"), [(CIFAR10, 2, 10), (CIFAR10, 2, 50), (CIFAR100, 10, 10), (CIFAR100, 10, 100)]
)
def test_plain_classes_of_fedssa(data, per_client, clients):
    train, test = data
    dealt = deal(Classes(classes_per_client=per_client), data, clients)
    for views, part in ((dealt.train, train), (dealt.test, test)):
        held = counts(views, part)
        assert ((held > 0).sum(1) == per_client).all()
        assert held.sum() == len(part)
        assert held[held > 0].max() - held[held > 0].min() <= 1
    if (per_client, clients) == (10, 10):  # trap B3.8: each class lives on exactly one client
        assert ((counts(dealt.train, train) > 0).sum(0) == 1).all()


@pytest.mark.parametrize("kind", [Classes, Pathological])
def test_classes_that_cannot_be_dealt(kind):
    with pytest.raises(ConfigError, match=r"7 clients with 2 of 10 classes make 1\.4 clients per class; need a whole"):
        deal(kind(classes_per_client=2), CIFAR10, 7)
    with pytest.raises(ConfigError, match="classes_per_client = 11, but the source has 10 classes"):
        deal(kind(classes_per_client=11), CIFAR10, 10)
    rare = labels_only([0] * 100 + [1] * 3)
    with pytest.raises(ConfigError, match=r"class 1 has 3 training samples; its 4 clients need \d"):
        deal(kind(classes_per_client=1), (rare, rare), 8)


def test_pathological_bounds_in_the_wrong_order():
    with pytest.raises(ConfigError, match=r"low = 0\.7 is above high = 0\.6"):
        Pathological(classes_per_client=2, low=0.7)


def test_pachinko_on_cifar100():
    """Fed-CO2: 100 clients with 600 images each, about 500 of the training and 100 of the test set."""
    train, test = CIFAR100
    dealt = deal(Pachinko(), CIFAR100, 100)
    assert (dealt.train.sizes + dealt.test.sizes).tolist() == [600] * 100
    assert dealt.train.sizes.sum() == 50_000
    # 600 draws, a sixth from the test set: 5 standard deviations are 46
    assert np.abs(dealt.test.sizes - 100).max() < 46
    coarse = np.array(coarse_labels(NAMES))
    held = counts(dealt.train, train) + counts(dealt.test, test)
    top = np.stack([np.bincount(coarse, weights=row, minlength=20) for row in held]) / 600
    # Dir(0.3) over 20: E sum p^2 = (0.3 + 1) / (20 * 0.3 + 1) = 0.186; even shares would give 0.05. Using classes up
    # makes late clients a little more or less mixed.
    assert (top**2).sum(1).mean() == pytest.approx(0.186, abs=0.04)


def test_pachinko_clients_stay_within_few_superclasses_in_whatever_order_classes_come():
    order = np.random.default_rng(3).permutation(100)
    train = labels_only(np.repeat(np.arange(100), 500), [NAMES[c] for c in order])
    coarse = np.array(coarse_labels(train.classes))
    assert {n for c, n in zip(coarse, train.classes, strict=True) if c == 1} == set(SUPERCLASSES["fish"])
    # a huge beta: within a superclass the five classes are alike, however the classes are numbered
    dealt = deal(Pachinko(alpha=0.05, beta=1e6), (train, train.head(0)), 20)
    first = counts(dealt.train, train)[0]
    strong = [first[coarse == s] for s in range(20) if first[coarse == s].sum() > 1000]
    assert strong
    for of in strong:
        assert of.min() > 0.7 * of.max()


def test_pachinko_uses_everything_up_and_survives_tiny_alphas():
    data = labels_only(np.repeat(np.arange(100), 6), NAMES)
    dealt = deal(Pachinko(alpha=1e-3, beta=1e-3), (data, data), 20)
    assert dealt.train.sizes.sum() + dealt.test.sizes.sum() == 1200


def test_pachinko_draws_one_by_one():
    """Two superclasses, a client that wants as much as one class has: the law of single draws without replacement.

    With alpha and beta huge, every draw is even over the superclasses that have images left, so that a client of all
    images but a few still takes every class, and the classes used up first are the small ones.
    """
    sizes = np.full(100, 4)
    sizes[0] = 1
    data = labels_only(np.repeat(np.arange(100), sizes), NAMES)
    gone = 0
    for seed in range(40):
        dealt = deal(Pachinko(alpha=1e6, beta=1e6), (data, data.head(0)), 2, seed)
        first = counts(dealt.train, data)[0]
        assert first.sum() == len(data) // 2
        assert (first <= sizes).all()
        gone += first[0]
    # P(the one image of class 0 is among about 200 even draws over 100 classes) = 1 - 0.99^199 = 0.865: 40 seeds
    # have standard deviation 2.2
    assert gone == pytest.approx(0.865 * 40, abs=5 * 2.2)


@pytest.mark.parametrize("names", [[str(c) for c in range(10)], [f"class{c}" for c in range(100)]])
def test_pachinko_needs_the_names_of_cifar100(names):
    data = labels_only(np.arange(200) % len(names), names)
    with pytest.raises(DataError, match="superclasses are CIFAR-100's"):
        deal(Pachinko(), (data, data), 4)
