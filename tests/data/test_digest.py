"""Digests of data: everything that a run is dealt changes them, and nothing else does."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedloom.core.streams import Streams
from fedloom.data.assemble import make_scenario
from fedloom.data.dataset import checked, sets_digest
from fedloom.data.partitions import PARTITIONS
from fedloom.data.sources.source import Splits


def _splits():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 2
    train, test = (
        replace(
            checked(part, labels, origin="test", domain=labels, domains=("a", "b")),
            features=("f", "g", "h"),
            mean=torch.zeros(3),
            std=torch.ones(3),
        )
        for part, labels in ((x[:30], y[:30]), (x[30:], y[30:]))
    )
    return Splits(train, test)


def _dealt(splits, seed=0):
    partition = PARTITIONS.get("iid")()
    return make_scenario("test", splits, partition, clients=3, val=0.1, streams=Streams(seed))


CHANGES = {
    "sample": lambda data: replace(data, x=data.x + 1e-6),
    "label": lambda data: replace(data, y=1 - data.y),
    "class-names": lambda data: replace(data, classes=("no", "yes")),
    "domain": lambda data: replace(data, domain=1 - data.domain),
    "domain-names": lambda data: replace(data, domains=("a", "c")),
    "features": lambda data: replace(data, features=("f", "h", "g")),
    "words": lambda data: replace(data, words=("word",)),
    "normalisation": lambda data: replace(data, std=torch.full((3,), 2.0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_everything_that_a_source_holds_changes_both_digests(name):
    splits = _splits()
    changed = replace(splits, train=CHANGES[name](splits.train))
    assert sets_digest([splits.train]) != sets_digest([changed.train])
    first, second = _dealt(splits), _dealt(changed)
    assert first.source_digest != second.source_digest
    assert first.dealt_digest() != second.dealt_digest()


def test_the_seed_of_the_deal_changes_what_was_dealt_and_not_the_source():
    first, again, other = _dealt(_splits()), _dealt(_splits()), _dealt(_splits(), seed=1)
    assert (first.source_digest, first.dealt_digest()) == (again.source_digest, again.dealt_digest())
    assert first.source_digest == other.source_digest
    assert first.dealt_digest() != other.dealt_digest()


@pytest.mark.parametrize("name", CHANGES)
def test_a_scenario_made_by_hand_is_hashed_whole(name):
    scenario = replace(_dealt(_splits()), source_digest="")
    changed = replace(scenario, train_set=CHANGES[name](scenario.train_set))
    assert scenario.dealt_digest() != changed.dealt_digest()


def test_the_server_s_samples_and_the_tested_rows_are_part_of_it():
    scenario = _dealt(_splits())
    assert replace(scenario, public=scenario.test_set).dealt_digest() != scenario.dealt_digest()
    assert replace(scenario, test_rows=np.arange(3)).dealt_digest() != scenario.dealt_digest()
