"""Test samples that are training samples, too: counted exactly, in little time, and never by a hash of a part alone."""

import numpy as np
import pytest
import torch

from fedloom.core.streams import Streams
from fedloom.data import OwnSplit, from_arrays, make_scenario
from fedloom.data import leak as repeated_samples
from fedloom.data.dataset import Dataset
from fedloom.data.leak import repeated_samples_notes
from fedloom.data.partitions.classes import IID


def samples(count, shape, seed, dtype=torch.uint8):
    draws = torch.randint(0, 255, (count, *shape), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Dataset(draws.to(dtype), torch.arange(count) % 3, ("a", "b", "c"))


def counts(train, test, rows=None):
    notes = repeated_samples_notes(train, np.arange(len(train)) if rows is None else np.asarray(rows), test)
    return [text.split(" equal")[0] for text in notes]


@pytest.mark.parametrize("shape", [(3,), (1, 8, 8), (3, 64, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.int64], ids=str)
def test_samples_that_are_in_both_parts_are_counted(shape, dtype):
    train, test = samples(30, shape, 0, dtype), samples(12, shape, 1, dtype)
    assert counts(train, test) == []
    for row in (1, 4, 7):
        test.x[row] = train.x[row + 3]  # of the same class
    test.x[8], train.x[20] = train.x[10], train.x[14]  # 8 and 10: two classes
    assert counts(train, test) == ["3 of 12 test samples", "2 of 30 training samples"]


def test_large_samples_that_begin_alike_are_different():
    train, test = samples(6, (3, 64, 64), 0), samples(6, (3, 64, 64), 1)
    train.x[:, :2] = test.x[:, :2] = 7
    assert counts(train, test) == []
    test.x[5] = train.x[2]
    assert counts(train, test) == ["1 of 6 test samples"]


def test_only_dealt_training_samples_count():
    train = samples(9, (4,), 0)
    assert counts(train, train, range(3)) == ["3 of 9 test samples"]


def test_sets_that_cannot_be_alike_and_sets_without_values():
    train, test = samples(6, (4,), 0), samples(6, (5,), 0)
    assert counts(train, test) == counts(train, samples(6, (4,), 0, torch.float32)) == []
    empty = Dataset(torch.empty(6, 0), torch.zeros(6, dtype=torch.int64), ("a",))
    assert counts(empty, empty) == []


def test_sets_that_are_too_large_are_not_compared_and_that_is_said(monkeypatch):
    train = samples(10, (4,), 0)
    monkeypatch.setattr(repeated_samples, "_MOST_BYTES", 79)
    (note,) = repeated_samples_notes(train, np.arange(10), train)
    assert note.endswith("80 bytes are more than 79")
    monkeypatch.setattr(repeated_samples, "_MOST_BYTES", 80)
    assert counts(train, train) == ["10 of 10 test samples"]


@pytest.mark.parametrize("split", [None, OwnSplit(train=1, test=1), OwnSplit(train=1, test=1, pool="all")])
def test_scenarios_say_so_however_samples_are_split(split):
    x = np.repeat(np.random.default_rng(0).normal(size=(20, 4)), 2, 0)  # each sample twice
    data = from_arrays(x, np.zeros(40, int), x[:10], np.zeros(10, int))
    scenario = make_scenario("twice", data, IID(), clients=2, val=0.1, streams=Streams(0), split=split)
    (note,) = [note for note in scenario.notes if "equal a training sample" in note]
    if split is None:
        assert note == "10 of 10 test samples equal a training sample in all values and in the label"
        assert "40 of 40 training samples equal another one" in scenario.notes
