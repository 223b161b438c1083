"""The majority baseline, against golden numbers."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.evaluation.protocols import majority

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())["measures"]


def views_of_sizes(sizes):
    return Views.from_lists(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


@pytest.fixture
def scenario():
    counts = GOLDEN["majority"]["train_counts"]
    train = [np.repeat(np.arange(5), row) for row in counts]
    tests = [np.array(labels, np.int64) for labels in GOLDEN["labels"]]
    classes = tuple("abcde")
    sets = [
        Dataset(torch.zeros(len(labels), 1), torch.from_numpy(labels), classes)
        for labels in (np.concatenate(train), np.concatenate(tests))
    ]
    nobody = Views.from_lists([np.arange(0)] * 4)
    return Scenario(
        "golden", *sets, train=views_of_sizes([*map(len, train)]), val=nobody, test=views_of_sizes([*map(len, tests)])
    )


def test_golden(scenario):
    golden = GOLDEN["majority"]
    baseline = majority(scenario, "global")
    assert (baseline.label, math.isnan(baseline.own)) == (golden["global_class"], True)
    assert baseline.everywhere == pytest.approx(golden["global"], abs=1e-7)
    assert baseline.to_beat("personal") == baseline.everywhere
    by_client = majority(scenario, "local")
    assert by_client.own == pytest.approx(golden["own_mean"], abs=1e-7)
    # class 2 has 5 of 10, 0 of 6 and 3 of 8 test samples; the last client has none
    assert by_client.everywhere == pytest.approx((5 / 10 + 0 + 3 / 8) / 3)
    assert (by_client.to_beat("personal"), by_client.to_beat("global")) == (by_client.own, by_client.everywhere)


def test_a_client_without_training_data_has_no_class_of_its_own():
    labels = torch.tensor([1, 1, 1, 0])
    data = Dataset(torch.zeros(4, 1), labels, ("a", "b"))
    nobody = Views.from_lists([np.arange(0)] * 2)
    train, tests = Views.from_lists([np.arange(3), np.arange(0)]), Views.from_lists([np.arange(2), np.array([2, 3])])
    baseline = majority(Scenario("toy", data, data, train=train, val=nobody, test=tests), "local")
    assert (baseline.own, baseline.everywhere) == (1.0, 0.75)


def test_of_equally_frequent_classes_the_lowest_counts():
    labels, tests = torch.tensor([0, 1, 1, 2, 2]), torch.tensor([1, 2, 2])
    train_set, test_set = (Dataset(torch.zeros(len(y), 1), y, ("a", "b", "c")) for y in (labels, tests))
    views = views_of_sizes([5]), views_of_sizes([0]), views_of_sizes([3])
    baseline = majority(Scenario("toy", train_set, test_set, *views), "local")
    assert (baseline.label, baseline.own, baseline.everywhere) == (1, *[pytest.approx(1 / 3)] * 2)
