"""Distances of label distributions by hand, at their ends, and as metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.diagnosis.label_profile import (
    DISTANCES,
    Distance,
    distance,
    entropy,
    gini,
    mean_of_pairs,
    pairwise,
    shares_of,
)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("total_variation", 0.5),
        ("hellinger", math.sqrt(1 - math.sqrt(0.5))),
        # M = (3/4, 1/4): KL of (1/2, 1/2) and of (1, 0) to M, in bits, halved
        ("jensen_shannon", math.sqrt((0.5 * math.log2(2 / 3) + 0.5 * math.log2(2) + math.log2(4 / 3)) / 2)),
    ],
)
def test_by_hand(kind: Distance, expected: float) -> None:
    assert float(distance(kind, np.array([0.5, 0.5]), np.array([1.0, 0.0]))) == pytest.approx(expected)


@pytest.mark.parametrize("kind", DISTANCES)
def test_distributions_without_a_common_class_are_one_apart(kind: Distance) -> None:
    matrix = pairwise(kind, np.eye(4))
    assert matrix == pytest.approx(1 - np.eye(4))
    assert mean_of_pairs(matrix) == pytest.approx(1)
    assert float(distance(kind, np.array([0.3, 0.7]), np.array([0.3, 0.7]))) == pytest.approx(0, abs=1e-7)


distributions = st.lists(st.integers(0, 9), min_size=9, max_size=9).map(
    lambda counts: shares_of(np.array(counts).reshape(3, 3) + np.eye(3, dtype=int))
)


@settings(max_examples=50, deadline=None)
@given(distributions)
def test_all_three_are_metrics(shares: np.ndarray) -> None:
    for kind in DISTANCES:
        matrix = pairwise(kind, shares)
        assert (matrix == matrix.T).all()
        assert matrix[0, 2] <= matrix[0, 1] + matrix[1, 2] + 1e-9


def test_entropy_and_gini() -> None:
    assert entropy(np.array([[0.25] * 4, [1, 0, 0, 0]])).tolist() == pytest.approx([math.log(4), 0])
    assert gini(np.array([1, 1, 4])) == pytest.approx(1 / 3)  # mean difference 4/3, twice the mean 4
    assert gini(np.array([], dtype=np.int64)) == gini(np.zeros(3)) == 0
