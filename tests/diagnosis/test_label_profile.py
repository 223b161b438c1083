"""Label and quantity skew from counts: known worlds, the interval of random dealings, and what is left out."""

from __future__ import annotations

import numpy as np
import pytest

from fedloom.core.errors import ConfigError
from fedloom.diagnosis.label_profile import MOST_CLIENTS, label_profile, scaled_to_plane


def random_counts(seed: int, clients: int = 10, classes: int = 5, samples: int = 100) -> np.ndarray:
    return np.random.default_rng(seed).multinomial(samples, [1 / classes] * classes, clients)


def test_random_counts_lie_in_the_interval_about_as_often_as_it_says() -> None:
    """Worlds 0 to 19, fixed before any was looked at: with 95 % intervals, 5 outside have a chance of 1 in 400."""
    intervals = [label_profile(random_counts(seed)).distances["hellinger"] for seed in range(20)]
    assert sum(interval.low <= interval.value <= interval.high for interval in intervals) >= 16


def test_disjoint_classes_are_as_far_apart_as_can_be() -> None:
    profile = label_profile(50 * np.eye(4, dtype=np.int64))
    assert all(interval.value == pytest.approx(1) for interval in profile.distances.values())
    assert not any(interval.looks_iid for interval in profile.distances.values())
    assert profile.effective_classes.tolist() == pytest.approx([1] * 4)
    assert len(set(profile.groups.tolist())) == 4


def test_groups_are_the_clients_that_share_a_distribution() -> None:
    rng = np.random.default_rng(0)
    mixes = [[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]]
    profile = label_profile(np.stack([rng.multinomial(300, mixes[k % 2]) for k in range(8)]))
    assert len({tuple(profile.groups[k::2].tolist()) for k in (0, 1)}) == 2
    assert len(set(profile.groups.tolist())) == 2


def test_amounts_and_tails() -> None:
    profile = label_profile(np.array([[90, 9, 0], [10, 1, 0], [0, 0, 0], [1, 0, 0]]))
    assert profile.clients == (0, 1, 3)
    assert (profile.empty_clients, profile.left_out, profile.absent_classes) == (1, 0, (2,))
    assert profile.size_ratio == 99
    assert profile.tail_ratio == pytest.approx(10.1)
    assert profile.few_shot == (3,)
    assert profile.classes == 2


def test_one_client_and_one_class_have_answers() -> None:
    profile = label_profile(np.array([[7]]))
    assert all(interval.value == 0 and interval.looks_iid for interval in profile.distances.values())
    assert (profile.size_gini, profile.tail_ratio, profile.effective_classes.tolist()) == (0, 1, [1])
    assert profile.places.tolist() == [[0, 0]]
    assert profile.groups.tolist() == [1]


def test_of_many_clients_evenly_spaced_ones_are_compared_and_the_rest_counted() -> None:
    profile = label_profile(random_counts(0, clients=250, samples=10))
    assert (len(profile.clients), profile.left_out) == (MOST_CLIENTS, 150)
    assert (profile.clients[0], profile.clients[-1]) == (0, 249)


def test_the_plane_keeps_distances_that_fit_into_it() -> None:
    places = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]])
    matrix = np.linalg.norm(places[:, None] - places[None], axis=2)
    scaled = scaled_to_plane(matrix)
    assert np.linalg.norm(scaled[:, None] - scaled[None], axis=2) == pytest.approx(matrix)


def test_no_samples_and_negative_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="no client has training samples"):
        label_profile(np.zeros((3, 2), dtype=np.int64))
    with pytest.raises(ConfigError, match="0 or more"):
        label_profile(np.array([[1, -1]]))
