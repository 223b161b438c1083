"""Partitions: nothing lost, nothing dealt twice, everything a function of the seed."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.partitions import PARTITIONS, deal_by_shares
from fedloom.data.partitions.dirichlet import Dirichlet
from fedloom.data.partitions.iid import IID

PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(np.array)
partitions = st.one_of(
    st.just(IID()),
    st.builds(Dirichlet, alpha=st.sampled_from([1e-3, 0.1, 1.0, 100.0]), min_samples=st.integers(0, 3)),
)


def as_lists(views):
    return [views[k].tolist() for k in range(len(views))]


def deal(partition, train, test, clients, seed):
    return partition.deal(train, test, clients, 5, Streams(seed).numpy("partition"))


def deal_if_possible(partition, train, test, clients, seed):
    try:
        return deal(partition, train, test, clients, seed)
    except ConfigError:
        assume(False)


@PROPERTY
@given(partitions, label_lists, label_lists, st.integers(1, 8), st.integers(0, 1000))
def test_every_sample_goes_to_exactly_one_client(partition, train, test, clients, seed):
    dealt = deal_if_possible(partition, train, test, clients, seed)
    for views, labels in ((dealt.train, train), (dealt.test, test)):
        assert len(views) == clients
        assert sorted(views.order.tolist()) == list(range(len(labels)))


@PROPERTY
@given(partitions, label_lists, label_lists, st.integers(1, 8), st.integers(0, 1000))
def test_equal_seeds_deal_equally_whatever_was_drawn_before(partition, train, test, clients, seed):
    first = deal_if_possible(partition, train, test, clients, seed)
    np.random.default_rng(seed).random(7)
    np.random.random(3)  # noqa: NPY002 - the global generator must not matter
    again = deal(partition, train, test, clients, seed)
    assert as_lists(first.train) == as_lists(again.train)
    assert as_lists(first.test) == as_lists(again.test)
    assert first.draws == again.draws


@pytest.mark.parametrize("partition", [IID(), Dirichlet(alpha=0.5, min_samples=0)], ids=["iid", "dirichlet"])
def test_another_seed_deals_differently(partition):
    labels = np.arange(200) % 5
    assert as_lists(deal(partition, labels, labels, 4, 0).train) != as_lists(
        deal(partition, labels, labels, 4, 1).train
    )


@PROPERTY
@given(label_lists, st.integers(1, 100), st.integers(0, 1000))
def test_iid_sizes_differ_by_at_most_one(train, clients, seed):
    sizes = deal(IID(), train, train, clients, seed).train.sizes
    assert sizes.max() - sizes.min() <= 1


def test_iid_shuffles():
    dealt = deal(IID(), np.zeros(100, np.int64), np.zeros(100, np.int64), 2, 0)
    assert set(dealt.train[0].tolist()) != set(range(50))


def test_dirichlet_gives_every_client_its_minimum():
    labels = np.arange(100) % 5
    partition = Dirichlet(alpha=1.0, min_samples=8)  # of 12.5 on average, so that the minimum binds
    smallest = [deal(partition, labels, labels, 8, seed).train.sizes.min() for seed in range(30)]
    assert min(smallest) == 8


def test_dirichlet_test_views_have_the_same_mix_as_the_training_views():
    train, test = np.arange(5000) % 5, np.arange(1000) % 5
    dealt = deal(Dirichlet(alpha=0.3, min_samples=0), train, test, 6, 3)
    shares = dealt.train.class_counts(train, 5) / 1000
    test_shares = dealt.test.class_counts(test, 5) / 200
    assert shares.max() > 0.5  # skewed, so that the next line says something
    # both are the same share cut down to whole samples: off by less than one sample of each set
    assert np.abs(shares - test_shares).max() < 1 / 1000 + 1 / 200


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_marginals(alpha):
    """A client's share of a class is Beta(a, (N-1) a): mean 1/N, variance (N-1) / (N^2 (N a + 1))."""
    clients, classes, per_class, seeds = 4, 5, 2000, 150
    labels = np.repeat(np.arange(classes), per_class)
    partition = Dirichlet(alpha=alpha, min_samples=0)
    shares = np.stack(
        [deal(partition, labels, labels[:1], clients, s).train.class_counts(labels, classes) for s in range(seeds)]
    )
    shares = shares / per_class
    variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
    draws = seeds * classes
    # five standard errors, and one sample of rounding by cutting
    tolerance = 5 * math.sqrt(variance / draws) + 1 / per_class
    assert np.abs(shares.mean((0, 2)) - 1 / clients).max() < tolerance
    # the variance of n independent draws has a relative standard error of about sqrt(2 / n), here 3 %: five of them
    assert shares.var() == pytest.approx(variance, rel=0.15)


def test_a_minimum_that_no_draw_can_reach_is_refused_before_drawing():
    with pytest.raises(ConfigError, match="4 clients with at least 30 samples each need 120 samples, there are 100"):
        deal(Dirichlet(alpha=1.0, min_samples=30), np.zeros(100, np.int64), np.zeros(1, np.int64), 4, 0)


def test_rejection_is_bounded_and_the_bound_is_said():
    labels = np.zeros(100, np.int64)  # one class, tiny alpha: one client takes nearly everything in every draw
    partition = Dirichlet(alpha=1e-3, min_samples=10, max_draws=7)
    with pytest.raises(ConfigError, match=r"none of 7 draws with alpha 0\.001"):
        deal(partition, labels, labels, 5, 0)


def test_the_number_of_draws_is_reported():
    labels = np.arange(200) % 5
    eager = deal(Dirichlet(alpha=0.3, min_samples=0), labels, labels, 8, 0)
    strict = [deal(Dirichlet(alpha=0.3, min_samples=12), labels, labels, 8, seed).draws for seed in range(5)]
    assert eager.draws == 1
    assert max(strict) > 1


def test_more_clients_than_samples_leaves_empty_views_only_where_no_minimum_forbids_it():
    labels = np.array([0, 1, 2])
    dealt = deal(IID(), labels, labels, 5, 0)
    assert sorted(dealt.train.sizes.tolist()) == [0, 0, 1, 1, 1]
    dealt = deal(Dirichlet(alpha=1.0, min_samples=0), labels, labels, 5, 0)
    assert dealt.train.sizes.sum() == 3
    with pytest.raises(ConfigError, match="5 clients with at least 1 samples each need 5 samples, there are 3"):
        deal(Dirichlet(alpha=1.0, min_samples=1), labels, labels, 5, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"alpha": 0},
        {"alpha": -1},
        {"alpha": math.nan},
        {"alpha": math.inf},
        {"alpha": 1, "min_samples": -1},
        {"alpha": 1, "max_draws": 0},
        {"alpha": 1, "unknown": 2},
    ],
    ids=str,
)
def test_unusable_settings_are_refused(settings):
    with pytest.raises(ValidationError):
        Dirichlet(**settings)


def test_deal_by_shares_cuts_every_class_at_the_cumulative_shares():
    labels = np.array([0] * 10 + [1] * 8)
    shares = np.array([[0.25, 1.0], [0.35, 0.0], [0.4, 0.0]])
    views = deal_by_shares(labels, shares, np.random.default_rng(0))
    # class 0: cuts at floor(2.5) = 2 and floor(6) = 6; class 1: everything to client 0
    assert views.class_counts(labels, 2).tolist() == [[2, 8], [4, 0], [4, 0]]


def test_deal_by_shares_shuffles_within_a_class():
    dealt = [
        deal_by_shares(np.zeros(100, np.int64), np.array([[0.5], [0.5]]), np.random.default_rng(s)) for s in (0, 1)
    ]
    assert set(dealt[0][0].tolist()) != set(dealt[1][0].tolist())


def test_both_partitions_are_registered():
    assert PARTITIONS.get("iid") is IID
    assert PARTITIONS.get("dirichlet") is Dirichlet
