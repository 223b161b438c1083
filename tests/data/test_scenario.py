"""Scenarios: training, validation and test views that do not overlap, from nothing but the seed."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data import OwnSplit, make_scenario
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.classes import IID
from fedloom.data.partitions.dirichlet import Dirichlet
from fedloom.data.partitions.domains import Domains
from fedloom.data.partitions.natural import Natural
from fedloom.data.sources.source import Splits
from fedloom.data.views import Views, split_three


def splits(train=60, test=20):
    def dataset(n):
        return Dataset(torch.arange(n).view(n, 1), torch.arange(n) % 3, ("a", "b", "c"))

    return Splits(dataset(train), dataset(test))


def scenario(data, *, clients=4, val=0.0, seed=0, partition=None, **more):
    return make_scenario("toy", data, partition or IID(), clients=clients, val=val, streams=Streams(seed), **more)


def own_split(train=8, val=1, test=1, pool="train"):
    return OwnSplit(train=train, val=val, test=test, pool=pool)


def as_lists(views):
    return [views[k].tolist() for k in range(len(views))]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 80), st.integers(0, 20), st.integers(1, 10), st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75]))
def test_train_and_val_are_disjoint_and_complete_and_val_has_its_share(train, test, clients, val):
    if clients > train:
        return
    data = splits(train, test)
    result = scenario(data, clients=clients, val=val)
    whole = scenario(data, clients=clients, val=0.0)
    assert sorted([*result.train.order.tolist(), *result.val.order.tolist()]) == list(range(train))
    assert sorted(result.test.order.tolist()) == list(range(test))
    for k in range(clients):
        own = len(whole.train[k])
        assert len(result.val[k]) == int(val * own)  # these shares are exact in binary, or far from a whole number
        assert sorted([*result.train[k].tolist(), *result.val[k].tolist()]) == sorted(whole.train[k].tolist())


def test_every_client_keeps_a_training_sample():
    assert scenario(splits(5), clients=5, val=0.99).train.sizes.tolist() == [1] * 5


def test_val_samples_are_a_random_choice_not_the_first_class():
    """Partitions deal by class; a cut without a shuffle would hold out only low classes."""
    data = splits(300)
    held_out = scenario(data, clients=1, val=0.2, partition=Dirichlet(alpha=1.0)).val[0]
    # 60 of 300 with 100 a class: about 20 of each; below 5 has a chance under 1e-6
    assert np.bincount(data.train.y.numpy()[held_out], minlength=3).min() >= 5


@pytest.mark.parametrize("partition", [IID(), Dirichlet(alpha=0.5, min_samples=2)], ids=["iid", "dirichlet"])
def test_a_scenario_is_a_function_of_its_seed(partition):
    first = scenario(splits(), val=0.25, partition=partition)
    torch.rand(5)
    np.random.random(5)  # noqa: NPY002
    again, other = (scenario(splits(), val=0.25, partition=partition, seed=s) for s in (0, 1))
    for part in ("train", "val", "test"):
        assert as_lists(getattr(first, part)) == as_lists(getattr(again, part))
        assert as_lists(getattr(first, part)) != as_lists(getattr(other, part))
    assert first.digest() == again.digest()
    assert first.digest() != other.digest()


def test_the_digest_sees_a_single_changed_label_or_pixel():
    expected = scenario(splits()).digest()
    for name in ("x", "y"):
        changed = splits()
        getattr(changed.test, name)[-1] += 1 if name == "x" else -1
        assert scenario(changed).digest() != expected


def test_arrays_are_not_copied():
    data = splits()
    result = scenario(data)
    assert result.train_set is data.train
    assert result.test_set is data.test


def test_class_counts_are_those_of_the_training_views():
    result = scenario(splits(), val=0.5)
    labels = result.train_set.y
    expected = [torch.bincount(labels[result.train.tensor(k)], minlength=3).tolist() for k in range(4)]
    assert result.class_counts().tolist() == expected
    assert (result.clients, result.num_classes) == (4, 3)


@pytest.mark.parametrize("clients", [0, -1, 61])
def test_clients_must_be_between_one_and_the_number_of_samples(clients):
    with pytest.raises(ConfigError, match=rf"scenario.clients = {clients}: toy has 60 training samples"):
        scenario(splits(), clients=clients)


@pytest.mark.parametrize("val", [1.0, -0.1, 1.5, float("nan")])
def test_the_val_share_must_be_in_range(val):
    with pytest.raises(ConfigError, match=r"scenario\.val = "):
        scenario(splits(), val=val)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(4, 200), st.integers(1, 4), st.sampled_from([(8, 1, 1), (4, 1, 1), (0.5, 0, 0.5)]), st.integers(0, 99)
)
def test_own_splits_are_disjoint_stratified_and_of_their_size(train, clients, shares, seed):
    data = splits(train)
    made = scenario(data, clients=clients, seed=seed, split=own_split(*shares))
    whole = scenario(data, clients=clients, seed=seed)
    assert made.test_origin == "train"
    rows = made.test.renumber(made.test_rows)
    for k in range(clients):
        own = whole.train[k]
        parts = [made.train[k].tolist(), made.val[k].tolist(), rows[k].tolist()]
        assert sorted(itertools.chain(*parts)) == sorted(own.tolist())
        for part, share in zip(parts[1:], shares[1:], strict=True):
            assert len(part) == int(share / sum(shares) * len(own))
            for label in range(3):
                of_class = sum(1 for i in part if data.train.y[i] == label)
                expected = share / sum(shares) * sum(1 for i in own if data.train.y[i] == label)
                assert abs(of_class - expected) < 2  # a cut can miss by one sample at either end
    assert torch.equal(made.test_set.y, data.train.y[torch.from_numpy(made.test_rows)])
    assert torch.equal(made.test_set.x, data.train.x[torch.from_numpy(made.test_rows)])
    assert sorted(made.test.order.tolist()) == list(range(len(made.test_set)))


@pytest.mark.parametrize("classes", [1, 2, 10])
def test_every_sample_is_equally_likely_to_be_a_test_sample(classes):
    """Ten samples, one of them tested: over 400 seeds each about 40 times (standard deviation 6)."""
    views, labels = Views.split_evenly(np.arange(10), 1), np.arange(10) * classes // 10
    tested = [
        int(split_three(views, labels, classes, 0, 0.1, np.random.default_rng(s))[2].order[0]) for s in range(400)
    ]
    assert np.abs(np.bincount(tested, minlength=10) - 40).max() < 5 * 6


def test_the_official_test_set_is_merged_in_only_by_name():
    data = splits(60, 30)
    apart, merged = (scenario(data, split=own_split(pool=pool)) for pool in ("train", "all"))
    assert len(apart.train_set) == 60
    assert apart.train_set is data.train
    assert (len(merged.train_set), merged.test_origin) == (90, "train+test")
    assert torch.equal(merged.train_set.y, torch.cat([data.train.y, data.test.y]))
    used = [*merged.train.order, *merged.val.order, *merged.test_rows]
    assert sorted(used) == list(range(90))
    # 15 training and 7 or 8 test samples each, a tenth tested
    assert merged.test.sizes.tolist() == [2] * 4


@pytest.mark.parametrize("shares", [(0, 1, 1), (8, 1, 0), (8, -1, 1)])
def test_splits_that_test_or_train_nothing(shares):
    with pytest.raises(ValidationError, match=r"(train|val|test)\s+Input should be greater than"):
        own_split(*shares)


def test_matched_tests_have_the_clients_own_mix():
    data = splits(300, 99)
    made = scenario(data, partition=Dirichlet(alpha=0.5, min_samples=20), val=0.2, tests="matched")
    whole = scenario(data, partition=Dirichlet(alpha=0.5, min_samples=20))
    held = whole.class_counts()
    tested = made.test.class_counts(data.test.y.numpy(), 3)
    for k in range(4):
        scarce = min(33 / n for n in held[k] if n)
        assert np.abs(tested[k] - scarce * held[k]).max() < 1
        assert tested[k].max() == 33
        assert len(set(made.test[k].tolist())) == len(made.test[k])


def test_matched_tests_that_cannot_be():
    data = splits()
    data.test.y[:] = data.test.y % 2
    with pytest.raises(ConfigError, match="client 0 holds a class without test samples; use shares"):
        scenario(data, tests="matched")
    with pytest.raises(ConfigError, match="with split, each client is tested on its own samples"):
        scenario(splits(), tests="matched", split=own_split())


def test_a_test_set_of_other_classes_is_nobodys_own():
    data = splits()
    novel = Dataset(data.test.x, data.test.y, ("x", "y", "z"))
    made = scenario(Splits(data.train, novel))
    assert made.test_set is novel
    assert made.test.sizes.tolist() == [0] * 4
    with pytest.raises(ConfigError, match="other classes or shapes; use pool=train"):
        scenario(Splits(data.train, novel), split=own_split(pool="all"))


def test_domains_are_counted_and_survive_splits():
    train = splits().train
    domain = torch.arange(60) % 2
    data = Splits(*(Dataset(train.x, train.y, train.classes, domain=domain, domains=("p", "s")) for _ in range(2)))
    made = scenario(data, partition=Domains(), clients=2, split=own_split(pool="all"))
    assert (made.domain_counts() > 0).tolist() == [[True, False], [False, True]]
    assert set(made.test_set.domain[made.test.tensor(1)].tolist()) == {1}
    assert scenario(splits()).domain_counts().shape == (4, 0)
    assert scenario(data, clients=4).domain_counts(first=2).shape == (2, 2)


def test_the_acceptance_is_kept_over_draws():
    made = scenario(splits(), partition=Dirichlet(alpha=0.5, min_samples=10), seed=3)
    assert made.acceptance == made.accepted / made.draws


def test_owners_without_training_samples_are_told_where_the_dealt_tests_count():
    data, owners = splits(60, 20), torch.arange(20) % 3
    owned = Splits(
        replace(data.train, domain=torch.arange(60) % 2, domains=("ann", "bob", "eve")),
        replace(data.test, domain=owners, domains=("ann", "bob", "eve")),
    )

    def notes(**more):
        told = scenario(owned, clients=2, partition=Natural(), **more).notes
        return [note for note in told if "owners" in note]

    assert notes() == [
        "test samples of owners without training samples, which are in no client's test: 6 of 20 (6 of 'eve')"
    ]
    assert notes(split=own_split(pool="all")) == notes()
    assert notes(split=own_split()) == []  # the official test set is unused
    assert notes(tests="matched") == []  # whose samples may be anybody's
