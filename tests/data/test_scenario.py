"""Scenarios: training, validation and test views that do not overlap, from nothing but the seed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.partitions.dirichlet import Dirichlet
from fedloom.data.partitions.iid import IID
from fedloom.data.scenario import make_scenario
from fedloom.data.sources.source import Splits


def splits(train=60, test=20):
    def dataset(n):
        return Dataset(torch.arange(n).view(n, 1), torch.arange(n) % 3, ("a", "b", "c"))

    return Splits(dataset(train), dataset(test))


def scenario(data, *, clients=4, val=0.0, seed=0, partition=None):
    return make_scenario("toy", data, partition or IID(), clients=clients, val=val, streams=Streams(seed))


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


def test_without_a_val_share_nothing_is_held_out():
    assert scenario(splits(), val=0.0).val.sizes.tolist() == [0, 0, 0, 0]


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


def test_the_number_of_draws_is_passed_on():
    draws = [scenario(splits(), partition=Dirichlet(alpha=0.5, min_samples=8), seed=s).draws for s in range(6)]
    assert max(draws) > 1


@pytest.mark.parametrize("clients", [0, -1, 61])
def test_clients_must_be_between_one_and_the_number_of_samples(clients):
    with pytest.raises(ConfigError, match=rf"scenario.clients = {clients}: toy has 60 training samples"):
        scenario(splits(), clients=clients)


@pytest.mark.parametrize("val", [1.0, -0.1, 1.5, float("nan")])
def test_the_val_share_must_be_in_range(val):
    with pytest.raises(ConfigError, match=r"scenario\.val = "):
        scenario(splits(), val=val)
