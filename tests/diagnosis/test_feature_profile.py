"""Feature skew on made worlds: rotations and noise are ordered rightly, and equal clients are told as equal."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.diagnosis.feature_profile import FeatureProfile, feature_profile, profile_of_scenario
from fedloom.nets.net import build, tree_of

CLIENTS, SAMPLES, WIDTH, CLASSES = 4, 80, 6, 3


def profile(*, angle: float = 0.0, shift: float = 0.0, flipped: float = 0.0, seed: int = 0) -> FeatureProfile:
    """Clients with Gaussian classes; client k is rotated by k times the angle and shifted by noise of its own."""
    rng = np.random.default_rng(seed)
    means = 2 * rng.normal(size=(CLASSES, WIDTH))
    features, labels = [], []
    for client in range(CLIENTS):
        y = rng.integers(0, CLASSES, SAMPLES)
        x = means[y] + rng.normal(size=(SAMPLES, WIDTH)) + shift * rng.normal(size=WIDTH)
        turn = np.eye(WIDTH)
        a = client * angle
        turn[:2, :2] = [[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]
        swapped = (rng.random(SAMPLES) < flipped) & (client == 0)
        features.append(x @ turn.T)
        labels.append(np.where(swapped, (y + 1) % CLASSES, y))
    owners = np.repeat(np.arange(CLIENTS), SAMPLES)
    return feature_profile(np.concatenate(features), np.concatenate(labels), owners, tuple(range(CLIENTS)))


def test_equal_clients_look_equal() -> None:
    """Worlds 0 to 9, fixed before any was looked at."""
    equal = [profile(seed=seed) for seed in range(10)]
    assert sum(p.class_distance.looks_iid for p in equal) >= 8
    assert np.mean([p.mean_label_gap for p in equal]) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("key", ["angle", "shift"])
def test_more_of_a_change_is_farther(key: str) -> None:
    distances = [profile(**{key: amount}).class_distance for amount in (0.0, 0.3, 0.6, 1.0)]
    values = [distance.value for distance in distances]
    assert values == sorted(values)
    assert distances[0].looks_iid
    assert not distances[-1].looks_iid


def test_another_meaning_of_labels_shows_at_the_client_that_has_it() -> None:
    gaps = profile(flipped=1.0).label_gaps
    assert gaps[0] > 0.5
    assert gaps[0] > 2 * np.abs(gaps[1:]).max()


def test_clients_without_a_common_class_have_no_distance() -> None:
    rng = np.random.default_rng(0)
    labels, owners = np.repeat([0, 1], 10), np.repeat([0, 1], 10)
    apart = feature_profile(rng.normal(size=(20, 3)), labels, owners, (0, 1))
    assert math.isnan(apart.class_distance.value)
    assert math.isnan(apart.mean_label_gap)


def scenario(sizes: tuple[int, ...]) -> Scenario:
    count = sum(sizes)
    data = Dataset(
        torch.randn(count, 3, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 2, ("a", "b")
    )
    views = Views.from_lists([np.arange(low, high) for low, high in pairwise(np.cumsum([0, *sizes]))])
    return Scenario("made", data, data, views, views, views)


def test_a_scenario_is_profiled_without_its_empty_clients() -> None:
    net = build("mlp", input_shape=(3,), num_classes=2, streams=Streams(0), hidden=(4,))
    result = profile_of_scenario(scenario((8, 0, 150)), net, tree_of(net))
    assert result.clients == (0, 2)
    assert result.samples == 108
    assert not math.isnan(result.class_distance.value)


def test_a_model_without_features_is_refused() -> None:
    net = build("mlp", input_shape=(3,), num_classes=2, streams=Streams(0), hidden=(4,))
    net.classifier_block = ()  # type: ignore[misc]
    with pytest.raises(ConfigError, match="has no features"):
        profile_of_scenario(scenario((8, 8)), net, tree_of(net))
