"""All partitions: nothing dealt twice, nothing lost that should not be, everything a function of the seed."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data import SKEWS, SOURCES
from fedloom.data.partitions import PARTITIONS, deal_by_counts, deal_by_shares, labels_only
from fedloom.data.partitions.classes import IID
from fedloom.data.partitions.partition import cut, deal_alike
from fedloom.data.sources.source import Source
from fedloom.runs.config.scenario_config import ScenarioConfig
from partition_cases import CASES

PROPERTY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
cases = st.sampled_from(sorted(CASES))
seeds = st.integers(0, 10_000)


def deal(case, seed):
    return case.partition.deal(case.train, case.test, case.clients, Streams(seed).numpy("partition"))


def as_lists(views):
    return [views[k].tolist() for k in range(len(views))]


POWER_LAW = '''
import numpy as np
from pydantic import Field
from fedloom.data.partitions import Dealt, Partition, partition
from fedloom.data.partitions.partition import cut
from fedloom.data.views import Views, starts

@partition("power-law")
class PowerLaw(Partition):
    """Client k has a share of the samples in proportion to (k + 1)^-exponent."""
    exponent: float = Field(1.0, gt=0, description="How fast sizes fall.")

    def deal(self, train, test, clients, rng):
        weights = np.arange(1.0, clients + 1) ** -self.exponent
        return Dealt(*(
            Views(rng.permutation(len(data)), starts(cut(weights / weights.sum(), len(data)))) for data in (train, test)
        ))
'''
USE = """
import power_law, fedloom as fl
sizes = fl.scenario("digits", partition="power-law", exponent=2, clients=3).build(0).train.sizes
assert sizes.tolist() == sorted(sizes, reverse=True) and sizes[0] > 3 * sizes[1], sizes
from fedloom.cli.app import main
main()
"""


def test_a_new_partition_is_one_file(tmp_path):
    """Its keys work in Python and on the command line once its module is imported; nothing else is written."""
    (tmp_path / "power_law.py").write_text(POWER_LAW)
    config = tmp_path / "config.yaml"
    config.write_text("scenario: {source: digits, partition: power-law, exponent: 2, clients: 3}")
    command = [sys.executable, "-c", USE, "inspect", str(config)]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "3 clients" in done.stdout


def test_every_partition_has_a_case():
    kinds = {type(CASES[name](0).partition) for name in CASES}
    others = {PARTITIONS.get(name) for name in ("indices", "flower")}  # they need a file and a package
    assert {kind for _, kind in PARTITIONS} == kinds | others


@settings(PROPERTY, max_examples=150)
@given(cases, seeds, seeds)
def test_no_sample_has_two_owners_and_none_is_lost(name, data_seed, seed):
    case = CASES[name](data_seed)
    dealt = deal(case, seed)
    assert len(dealt.train) == len(dealt.test) == case.clients
    for views, data in ((dealt.train, case.train), (dealt.test, case.test)):
        assert views.offsets[0] == 0
        assert views.offsets[-1] == len(views.order)
        assert not len(views.order) or 0 <= views.order.min() <= views.order.max() < len(data)
        if views is dealt.train or not case.tests_overlap:
            assert len(np.unique(views.order)) == len(views.order)
    for k in range(case.clients):
        assert len(np.unique(dealt.test[k])) == len(dealt.test[k])
    if case.complete:
        assert len(dealt.train.order) == len(case.train)


@PROPERTY
@given(cases, seeds, seeds)
def test_no_client_is_below_its_minimum(name, data_seed, seed):
    case = CASES[name](data_seed)
    dealt = deal(case, seed)
    assert dealt.train.sizes.min() >= case.least
    assert 1 <= dealt.accepted <= dealt.draws


@PROPERTY
@given(cases, cases, seeds)
def test_equal_seeds_deal_equally_whatever_was_dealt_before(name, other, seed):
    case = CASES[name](3)
    first = deal(case, seed)
    deal(CASES[other](4), seed + 1)
    np.random.random(3)  # noqa: NPY002 - the global generator must not matter
    again = deal(case, seed)
    backwards = [again.train[k].tolist() for k in reversed(range(case.clients))]
    assert as_lists(first.train) == backwards[::-1]
    assert as_lists(first.test) == as_lists(again.test)
    assert (first.draws, first.accepted) == (again.draws, again.accepted)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"natural"}))  # it draws nothing
def test_another_seed_deals_differently(name):
    case = CASES[name](0)
    assert as_lists(deal(case, 0).train) != as_lists(deal(case, 1).train)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"natural subset"}))
def test_an_empty_test_set_gives_empty_test_views(name):
    case = CASES[name](0)
    if name == "dirichlet-domains" or name == "dirichlet-fedma":  # they promise test samples
        with pytest.raises(ConfigError, match="test sample"):
            case.partition.deal(case.train, case.test.head(0), case.clients, Streams(0).numpy("partition"))
        return
    dealt = case.partition.deal(case.train, case.test.head(0), case.clients, Streams(0).numpy("partition"))
    assert dealt.test.sizes.tolist() == [0] * case.clients


@PROPERTY
@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 100), seeds)
def test_iid_sizes_differ_by_at_most_one(labels, clients, seed):
    data = labels_only(labels)
    sizes = IID().deal(data, data, clients, Streams(seed).numpy("partition")).train.sizes
    assert sizes.max() - sizes.min() <= 1


def test_deal_by_shares_cuts_every_class_at_the_cumulative_shares():
    labels = np.array([0] * 10 + [1] * 8)
    shares = np.array([[0.25, 1.0], [0.35, 0.0], [0.4, 0.0]])
    views = deal_by_shares(labels, shares, np.random.default_rng(0))
    # class 0: cuts at floor(2.5) = 2 and floor(6) = 6; class 1: everything to client 0
    assert views.class_counts(labels, 2).tolist() == [[2, 8], [4, 0], [4, 0]]


@PROPERTY
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(0, 1000))
def test_cuts_are_never_negative_and_lose_nothing(weights, count):
    total = sum(weights)
    shares = np.array(weights) / total if total > 0 else np.full(len(weights), 1 / len(weights))
    sizes = cut(shares, count)
    assert sizes.sum() == count
    assert sizes.min() >= 0


def test_deal_by_counts_leaves_the_rest_to_nobody():
    labels = np.array([0] * 10 + [1] * 8)
    views = deal_by_counts(labels, np.array([[3, 0], [5, 8]]), np.random.default_rng(0))
    assert views.class_counts(labels, 2).tolist() == [[3, 0], [5, 8]]


def test_dealing_alike_keeps_shares_and_leaves_out_what_nobody_trains_on():
    labels, others = np.array([0] * 10 + [1] * 8), np.array([0] * 5 + [1] * 4 + [2] * 3)
    views = deal_by_counts(labels, np.array([[4, 0], [6, 2]]), np.random.default_rng(0))
    alike = deal_alike(views, labels, others, 3, np.random.default_rng(1))
    assert alike.class_counts(others, 3).tolist() == [[2, 0, 0], [3, 4, 0]]


def test_every_partition_and_skew_says_what_it_is_with_an_example():
    for registry in (PARTITIONS, SKEWS):
        for name, kind in registry:
            text = kind.__doc__ or ""
            assert ">>> " in text or f": {name}" in text or f"name: {name}" in text, name


def test_no_key_means_two_things():
    """A scenario's keys go by name to its source and its partition: the same name in both would reach both."""
    own = set(ScenarioConfig.model_fields)
    for (source, kind), (name, dealt) in itertools.product(SOURCES, PARTITIONS):
        assert not (set(kind.model_fields) | own) & set(dealt.model_fields), f"{source} and {name}"
        # The base of all sources takes keys from the scenario.
        assert not own & (set(kind.model_fields) - set(Source.model_fields)), source
