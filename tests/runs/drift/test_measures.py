"""Measures of updates, by hand."""

import math

import pytest
import torch

from fedloom.runs.drift.updates import evenly, update_figures
from support import configured, world

TASK = world(configured("fedavg"), [[0], [1]]).task


def figures_of(rows, samples):
    moves = [({"fc.weight": torch.tensor([[row]])}, {"fc.weight": torch.zeros(1, 1, len(row))}) for row in rows]
    updates = dict(enumerate(moves))
    return update_figures(updates, TASK, dict(enumerate(samples)))


def test_lengths_and_angles_of_two_updates():
    """(3, 4) and (3, -4) with equal samples: the mean is (3, 0)."""
    values = figures_of([[3.0, 4.0], [3.0, -4.0]], [5, 5])
    whole = {v.name: v.value for v in values if v.client is None}
    assert whole == pytest.approx({"mean_update_norm": 3.0, "diversity": 25 / 9})
    for name, expected in (("update_norm", 5.0), ("distance_to_mean", 4.0), ("cosine_to_mean", 0.6)):
        assert [v.value for v in values if v.name == name] == pytest.approx([expected, expected])
    pairs = [(v.client, v.other, v.value) for v in values if v.name == "cosine"]
    assert pairs == [(0, 1, pytest.approx(-7 / 25))]


def test_the_mean_weighs_by_samples():
    """(1) with 1 sample and (5) with 3: the mean is 4, the mean square 19."""
    whole = {v.name: v.value for v in figures_of([[1.0], [5.0]], [1, 3]) if v.client is None}
    assert whole == pytest.approx({"mean_update_norm": 4.0, "diversity": 19 / 16})


def test_clients_that_do_not_move_have_lengths_and_no_angles():
    values = {(v.name, v.client): v.value for v in figures_of([[0.0], [0.0]], [1, 1])}
    assert values["mean_update_norm", None] == 0
    assert values["diversity", None] is None
    assert values["cosine_to_mean", 0] is None
    assert values["cosine", 0] is None


def test_updates_that_are_not_finite_have_no_angles():
    values = {
        (v.name, v.client): v.value for v in figures_of([[math.inf, 1.0], [-math.inf, 1.0], [1.0, 1.0]], [1, 1, 1])
    }
    assert [values["cosine", client] for client in (0, 1)] == [None, None]
    assert [values["cosine_to_mean", client] for client in (0, 1, 2)] == [None, None, None]


def test_opposite_updates_have_no_mean_direction():
    values = {(v.name, v.client): v.value for v in figures_of([[2.0], [-2.0]], [1, 1])}
    assert values["diversity", None] is None
    assert values["cosine", 0] == -1
    assert not math.isnan(values["distance_to_mean", 0])


def test_of_many_clients_evenly_spaced_ones_are_compared():
    assert evenly(range(5), 20) == [0, 1, 2, 3, 4]
    assert evenly(range(101), 3) == [0, 50, 100]
