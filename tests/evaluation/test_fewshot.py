"""Few-shot episodes: how they are drawn, ProtoNet against brute force and by hand, and the protocol in a run."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2

import fedloom
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.evaluation.fewshot import Episodes, EpisodeShape, episodes, few_shot_accuracy
from fedloom.runs.config.run_config import parse

STRAY = 1e-6  # the rate at which a test of chance would fail on a fresh seed; the seeds below are fixed


def generator(seed=0):
    return Streams(seed).numpy("episodes")


def embedded(z, labels=None):
    """A test set whose samples are their own features."""
    y = torch.zeros(len(z), dtype=torch.int64) if labels is None else labels
    return Dataset(torch.as_tensor(z, dtype=torch.float32), y, tuple(str(c) for c in range(int(y.max()) + 1)))


def as_it_is(x):
    return x


@pytest.mark.parametrize("shots", [1, 3])
def test_no_group_is_in_the_support_and_the_queries_of_an_episode(shots):
    groups, labels = torch.arange(40).repeat_interleave(4), torch.arange(160) % 4
    shape = EpisodeShape(ways=3, shots=shots, queries=5, episodes=20)
    drawn = episodes(labels, shape, generator(), groups)
    for support, query in zip(drawn.support, drawn.query, strict=True):
        assert not np.intersect1d(groups[support], groups[query]).size
        assert torch.equal(labels[support][:, :1].expand(-1, 5), labels[query])
        assert len(torch.unique(torch.cat([support, query], 1))) == 3 * (shots + 5)
    with pytest.raises(DataError, match="1 test groups of 3 classes cannot give 1 shots and 5 queries"):
        episodes(labels, EpisodeShape(3, 1, 5, 2), generator(), groups // 40)


# -- drawing -----------------------------------------------------------------------------------------------------------
LABELS = torch.tensor(np.random.default_rng(2).permutation(np.repeat([0, 1, 3, 4, 7, 8, 9], [9, 6, 30, 7, 8, 6, 12])))


def test_an_episode_holds_distinct_classes_and_distinct_samples_of_them():
    drawn = episodes(LABELS, EpisodeShape(ways=4, shots=2, queries=4, episodes=50), generator())
    assert (drawn.support.shape, drawn.query.shape) == ((50, 4, 2), (50, 4, 4))
    assert drawn.support.dtype == drawn.query.dtype == torch.int64
    for support, query in zip(drawn.support, drawn.query, strict=True):
        both = torch.cat([support, query], 1)
        classes = LABELS[both]
        assert (classes == classes[:, :1]).all()
        assert len(classes[:, 0].unique()) == 4
        assert len(both.unique()) == 24


def test_classes_and_samples_are_drawn_evenly():
    drawn = episodes(LABELS, EpisodeShape(ways=3, shots=1, queries=2, episodes=7000), generator())
    first = LABELS[drawn.support[:, 0, 0]]
    for members, expected in ((torch.bincount(first), 1000), (torch.bincount(drawn.query[first == 3][:, 0, 0]), None)):
        counts = members[members > 0].double()
        mean = counts.mean() if expected is None else expected
        assert float(((counts - mean) ** 2 / mean).sum()) < chi2.isf(STRAY, len(counts) - 1)
    assert len(first.unique()) == 7


@pytest.mark.parametrize(
    ("shape", "error", "message"),
    [
        (EpisodeShape(ways=8, shots=1, queries=1), DataError, "of 8 classes: the test set holds 7"),
        (EpisodeShape(shots=3, queries=4), DataError, "class 1 has 6 test samples; 3 shots and 4 queries need 7"),
        (EpisodeShape(ways=1), ConfigError, "1 ways, 5 shots, 15 queries, 600 episodes; need at least 2 ways"),
        (EpisodeShape(shots=0), ConfigError, "need at least"),
        (EpisodeShape(queries=0), ConfigError, "need at least"),
        (EpisodeShape(episodes=1), ConfigError, "need at least"),
    ],
)
def test_what_makes_no_episodes_is_refused(shape, error, message):
    with pytest.raises(error, match=message) as caught:
        episodes(LABELS, shape, generator())
    assert "\n" not in str(caught.value)


# -- ProtoNet ----------------------------------------------------------------------------------------------------------
def test_two_episodes_by_hand():
    """Features on a line at 0 1 2 3 4 10. Episode 1: prototypes (0 + 2) / 2 = 1 and (4 + 10) / 2 = 7; queries 1 and 3
    are the first class's, and nearer to 1. Episode 2: prototypes 2 and 7; query 4 is the second class's, nearer to 2;
    query 3 the first's, and right."""
    support = torch.tensor([[[0, 2], [4, 5]], [[1, 3], [4, 5]]])
    query = torch.tensor([[[1], [5]], [[3], [4]]])
    result = few_shot_accuracy(as_it_is, embedded([[0.0], [1], [2], [3], [4], [10]]), Episodes(support, query))
    assert (result.mean, result.n) == (0.75, 2)
    assert result.interval == pytest.approx(1.96 * math.sqrt(0.125) / math.sqrt(2))  # accuracies 1 and 1/2
    gaps = [0 - 36, 9 - 81, 1 - 16, 9 - 4]  # squared distance to the right prototype less that to the other
    assert result.loss == pytest.approx(sum(math.log1p(math.exp(gap)) for gap in gaps) / 4)


def slowly(z, drawn):
    """Accuracy of every episode, query by query, in float64."""
    accuracies = []
    for support, query in zip(drawn.support.tolist(), drawn.query.tolist(), strict=True):
        prototypes = [np.mean([z[i] for i in rows], axis=0) for rows in support]
        right = [
            min(range(len(prototypes)), key=lambda c: ((z[i] - prototypes[c]) ** 2).sum()) == way
            for way, rows in enumerate(query)
            for i in rows
        ]
        accuracies.append(np.mean(right))
    return np.array(accuracies)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_it_agrees_with_brute_force(offset):
    rng = np.random.default_rng(4)
    labels = torch.arange(160) % 8
    z = (rng.normal(size=(160, 12)) + 0.8 * rng.normal(size=(8, 12))[labels] + offset).astype(np.float32)
    drawn = episodes(labels, EpisodeShape(ways=5, shots=3, queries=7, episodes=130), generator())
    result = few_shot_accuracy(as_it_is, embedded(z, labels), drawn, batch=33)
    expected = slowly(z.astype(np.float64), drawn)
    assert result.mean == pytest.approx(expected.mean(), abs=1e-12)
    assert result.interval == pytest.approx(1.96 * expected.std(ddof=1) / math.sqrt(130), abs=1e-12)
    assert 0.4 < result.mean < 0.99


def test_features_that_know_nothing_are_right_one_time_in_five():
    labels = torch.arange(12_000) % 20
    z = torch.from_numpy(generator().normal(size=(12_000, 8)))
    result = few_shot_accuracy(as_it_is, embedded(z, labels), episodes(labels, EpisodeShape(), generator()))
    assert 0 < result.interval < 0.006
    assert abs(result.mean - 0.2) < 4.9 * result.interval / 1.96  # a stray of one in a million


def test_every_sample_goes_through_the_net_once_without_gradient():
    seen = []

    def features(x):
        assert not torch.is_grad_enabled()
        seen.append(len(x))
        return x

    labels = torch.arange(100) % 5
    drawn = episodes(labels, EpisodeShape(episodes=10), generator())
    few_shot_accuracy(features, embedded(torch.randn(100, 3, generator=torch.Generator()), labels), drawn, batch=32)
    assert seen == [32, 32, 32, 4]


# -- in a run ----------------------------------------------------------------------------------------------------------
FEW_SHOT = {"protocol": "few-shot", "queries": 10, "episodes": 40}


def federated(**changes):
    digits = fedloom.scenario("digits", partition="iid", clients=3)
    return fedloom.run(**{"scenario": digits, "rounds": 2, "local_epochs": 1, "evaluation": FEW_SHOT} | changes)


def test_a_run_reports_mean_interval_and_number_of_episodes():
    result = federated()
    names = {row["name"]: row["value"] for row in result.rows if row["protocol"] == "few-shot"}
    assert set(names) == {"accuracy", "loss", "accuracy_interval", "episodes"}
    assert names["episodes"] == 40
    assert 0 < names["accuracy_interval"] < 0.1
    assert 0.4 < result.numbers["accuracy"] == names["accuracy"] <= 1
    assert result.numbers["protocol"] == "few-shot"
    assert {row["split"] for row in result.rows if row["protocol"]} == {"test"}


def test_the_figure_is_that_of_the_servers_features_on_the_seeds_episodes(monkeypatch):
    from fedloom.evaluation import fewshot

    drawn = []

    def noting(labels, shape, rng, groups):
        drawn.append((labels, shape, episodes(labels, shape, rng, groups)))
        return drawn[-1][2]

    monkeypatch.setattr(fewshot, "episodes", noting)
    for method, seed in itertools.product(("fedavg", "fedsc"), (0, 1)):
        federated(method=method, seed=seed, rounds=1)
    assert len(drawn) == 4  # once a run, not once a round
    assert drawn[0][1] == EpisodeShape(5, 5, 10, 40)
    supports = [each.support for _, _, each in drawn]
    assert torch.equal(supports[0], supports[2])
    assert torch.equal(supports[1], supports[3])
    assert not torch.equal(supports[0], supports[1])
    expected = episodes(drawn[0][0], drawn[0][1], generator(0))
    assert torch.equal(expected.query, drawn[0][2].query)


def test_new_classes_can_be_tested_by_few_shot_alone():
    x, y = torch.randn(80, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(80) % 4
    old, new = Dataset(x, y % 2, ("a", "b")), Dataset(x, y, ("c", "d", "e", "f"))
    views = Views.from_lists([np.arange(40), np.arange(40, 80)])
    scenario = Scenario("novel", old, new, views, Views.from_lists([np.arange(0)] * 2), views)
    with pytest.raises(
        ConfigError, match="the test set of novel has other classes than its training set; use few-shot"
    ):
        federated(scenario=scenario, model="mlp", evaluation={})
    result = federated(scenario=scenario, model="mlp", evaluation=FEW_SHOT | {"ways": 4, "queries": 12})
    assert 0 < result.numbers["accuracy"] < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "local"}, "'few-shot': tests the server's model, and this method has none"),
        ({"evaluation": FEW_SHOT | {"queries": 60}}, "5 shots and 60 queries need 65"),
        ({"evaluation": FEW_SHOT | {"ways": 11}}, "of 11 classes: the test set holds 10; lower evaluation.ways"),
        ({"evaluation": FEW_SHOT | {"select": "best_val"}}, "'best_val': few-shot tests one set of classes"),
        ({"evaluation": FEW_SHOT | {"ways": 1}}, "evaluation.ways = 1: input should be greater than or equal to 2"),
        ({"evaluation": {"protocol": "fewshot"}}, "evaluation.protocol = 'fewshot'"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_one_line(changes, message):
    with pytest.raises((ConfigError, DataError), match=message) as caught:
        federated(**changes)
    assert "\n" not in str(caught.value)


def test_episode_sizes_have_the_usual_defaults():
    config = parse({"scenario": {"source": "digits", "alpha": 1.0}, "evaluation": {"protocol": "few-shot"}})
    assert config.evaluation.episode_shape() == EpisodeShape() == EpisodeShape(5, 5, 15, 600)
