"""Columns standardised together, though no node reads another's."""

import numpy as np
import pytest
import torch

from fedloom.core.errors import DataError, RunFolderError
from fedloom.data import Dataset
from fedloom.data.sources.nodes import Nodes
from fedloom.flower.node_data import (
    ChannelMoments,
    ClientMoments,
    Scale,
    find_medians,
    moments_of,
    outliers,
    pool_moments,
)


def told_of(values):
    """What the node tells that has these rows [n, d]."""
    data = Dataset(torch.tensor(values, dtype=torch.float32), torch.zeros(len(values), dtype=torch.int64), ("a",))
    return ClientMoments(len(values), moments_of(data, np.arange(len(values)), range(data.x.shape[1])))


def test_pooled_is_what_one_machine_finds_in_all_rows():
    rng = np.random.default_rng(0)
    parts = [rng.normal(shift, 3, (size, 4)).astype(np.float32) for shift, size in ((1e4, 7), (-5, 1), (0, 40))]
    found, whole = pool_moments([told_of(part) for part in parts]), np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(found.mean, whole.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, whole.std(0), rtol=1e-12)


def test_a_column_that_never_changes_is_only_centred():
    """0.1 is no sum of halves: means of it are off by rounding."""
    found = pool_moments([told_of([[0.1]] * 3), told_of([[0.1]] * 7)])
    assert (np.float32(found.mean[0]), found.std) == (np.float32(0.1), (1.0,))


def test_a_column_that_differs_between_nodes_alone_is_standardised():
    found = pool_moments([told_of([[0.0]] * 2), told_of([[2.0]] * 2)])
    assert (found.mean, found.std) == ((1.0,), (1.0,))


@pytest.mark.parametrize(
    "wrong", ['{"mean": [1e31], "squares": [0]}', '{"mean": [0], "squares": [-1]}', '{"mean": [NaN], "squares": [0]}']
)
def test_moments_that_no_column_has_are_refused(wrong):
    with pytest.raises(ValueError, match="validation error"):
        ChannelMoments.model_validate_json(wrong)


def test_a_scale_is_read_as_it_was_kept(tmp_path):
    scale = Scale(mean=(0.1, 1 / 3), std=(1e-30, 7.0))
    assert Scale.read(tmp_path) is None
    scale.write(tmp_path)
    assert Scale.read(tmp_path) == scale
    (tmp_path / "flower-scale.json").write_text("{")
    with pytest.raises(RunFolderError, match="damaged"):
        Scale.read(tmp_path)


def moments_with(mean, deviation, samples=100):
    return ClientMoments(samples, ChannelMoments(mean=(mean,), squares=(deviation**2 * samples,)))


def test_moments_far_from_those_of_others_are_left_out():
    """Means of 49 to 51 with a deviation of 10: the usual distance is sqrt(100 + 1) at most, 30 times that is 301."""
    honest = {k: moments_with(50.0 + k - 1, 10.0) for k in range(3)}
    assert not outliers(honest | {3: moments_with(340.0, 10.0)}, ["age"])
    (why,) = outliers(honest | {3: moments_with(5000.0, 1000.0)}, ["age"]).values()
    assert why.startswith("its deviation of 'age' is 1000, where the median client's is 1")
    assert list(outliers(honest | {3: moments_with(1e30, 10.0)}, ["age"])) == [3]
    assert list(outliers(honest | {3: moments_with(50.0, 1e30)}, ["age"])) == [3]
    assert not outliers({k: moments_with(1e30, 1.0) if k else moments_with(0.0, 1.0) for k in range(3)}, ["age"])


def test_a_feature_that_is_constant_almost_everywhere_may_have_other_values_at_one_client():
    constant = {k: moments_with(0.0, 0.0) for k in range(4)}
    assert not outliers(constant | {4: moments_with(5000.0, 700.0)}, ["dose"])
    assert list(outliers(constant | {4: moments_with(1e9, 0.0)}, ["dose"])) == [4]


def test_missing_cells_are_neither_counted_nor_told_where_they_are_few():
    data = Dataset(torch.tensor([[torch.nan, 1.0], [3.0, torch.nan]] * 4), torch.zeros(8, dtype=torch.int64), ("a",))
    told = moments_of(data, np.arange(8), range(2), imputes=True)
    assert (told.observed, told.mean, told.squares) == ((0, 0), (0.0, 0.0), (0.0, 0.0))
    told = moments_of(data, np.tile(np.arange(8), 2), range(2), imputes=True)
    assert (told.observed, told.mean, told.squares) == ((8, 8), (3.0, 1.0), (0.0, 0.0))


def test_nodes_pool_means_and_shares_over_observed_cells():
    """Of 12 words 7 are f, and one node of three has no age: (10 * 50 + 30 * 42) / 40 = 44."""
    nodes = Nodes(classes=["a", "b"], features=["age", "sex=m", "sex=f", "missing(age)"], impute={})
    parts = [(10, 50.0, 6, 1.0), (30, 42.0, 6, 1 / 6), (0, 0.0, 0, 0.0)]
    reported = [
        ClientMoments(40, ChannelMoments(mean=(age, 1 - f, f), squares=(0.0, 0.0, 0.0), observed=(n, words, words)))
        for n, age, words, f in parts
    ]
    scale = pool_moments(reported, nodes)
    age, sex = scale.imputed
    assert (scale.mean, age.value, age.observed, age.missing, age.indicator) == ((44.0,), 44.0, 40, 80, True)
    assert (sex.value, sex.observed, sex.indicator) == ("f", 12, False)
    tied = [ClientMoments(9, ChannelMoments(mean=(1.0, 0.5, 0.5), squares=(0.0, 0.0, 0.0), observed=(9, 6, 6)))]
    assert pool_moments(tied, nodes).imputed[1].value == "f"  # the smallest of equal ones
    with pytest.raises(DataError, match="column 'age': no training row has a value"):
        pool_moments(reported[2:], nodes)


def test_a_node_without_cells_of_a_column_is_no_outlier():
    honest = {k: ClientMoments(100, ChannelMoments(mean=(50.0 + k,), squares=(1e4,), observed=(90,))) for k in range(4)}
    absent = {k: ClientMoments(100, ChannelMoments(mean=(0.0,), squares=(0.0,), observed=(0,))) for k in range(4, 9)}
    assert not outliers(honest | absent, ["age"])
    assert not outliers(absent, ["age"])
    far = ClientMoments(100, ChannelMoments(mean=(5000.0,), squares=(1e4,), observed=(90,)))
    assert list(outliers(honest | absent | {9: far}, ["age"])) == [9]


@pytest.mark.parametrize(
    "cells",
    [
        [[50, 51, 52, 49, 50], [20, 90, 50, 53, 54, 55]],
        [[50, 50, 50, 50, 50], [51, 51, 51, 51, 51]],  # the two middle cells differ
        [[0, 0, 0, 0, 0], [100, 100, 100, 100, 100, 100]],  # a deviation from the mean, as far as a median can be
        [[7.3, 7.3, 7.3, 7.3, 7.3]],
        [[1, 2, 2, 3, 1e6], [2, 2, 2, 2, 2, 1], [9, 9]],  # a node of few cells does not count
        [[36.6, 36.7, 38.9, 36.6, 37.2], [36.4, 39.0, 36.8, 36.9, 37.1]],
    ],
)
def test_the_median_of_cells_with_few_digits_is_found_exactly(cells):
    nodes = Nodes(classes=["a", "b"], features=["age"], impute={"numbers": "median", "indicator": True})
    labels = [torch.zeros(len(own), dtype=torch.int64) for own in cells]
    parts = [
        Dataset(torch.tensor(own)[:, None].float(), y, ("a",), features=("age",))
        for own, y in zip(cells, labels, strict=True)
    ]

    def told(ranges=None):
        moments = [moments_of(part, np.arange(len(part)), [0], imputes=True, ranges=ranges) for part in parts]
        return [ClientMoments(len(part), of) for part, of in zip(parts, moments, strict=True)]

    scale = pool_moments(told(), nodes)
    (column,) = pool_moments(told(), nodes, find_medians(scale, told)).imputed
    assert column.value == pytest.approx(np.median(np.concatenate([own for own in cells if len(own) >= 5])), abs=1e-6)
