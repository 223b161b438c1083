"""Figures of label skew against numbers worked out by hand, and of feature shift against a shift that is known."""

import numpy as np
import pytest
import torch

from fedloom.data.dataset import Dataset
from fedloom.data.scenario import feature_shift, label_skew, total_variation
from fedloom.data.views import Views, starts
from support import two_domains


def skew_of(counts, **more):
    """Figures of clients with these class counts [N, C]."""
    clients, classes = counts.shape
    labels = np.repeat(np.tile(np.arange(classes), clients), counts.reshape(-1))
    return label_skew(Views(np.arange(len(labels)), starts(counts.sum(1))), labels, classes, **more)


def test_total_variation_of_lists_arrays_and_tensors():
    assert float(total_variation([1.0, 0.0], torch.tensor([0.0, 1.0]))) == 1
    assert total_variation(np.array([[0.5, 0.5], [0.25, 0.75]]), [0.25, 0.75]).tolist() == [0.25, 0]


def test_figures_of_three_clients_by_hand():
    skew = skew_of(np.array([[4, 0], [0, 2], [3, 3]]))
    # shares (1, 0), (0, 1), (1/2, 1/2): distances 1, 1/2, 1/2
    assert skew.total_variation == pytest.approx(2 / 3)
    assert skew.classes_per_client == pytest.approx((1 + 1 + 2) / 3)
    assert skew.imbalance == pytest.approx(7 / 5)
    assert skew.size_ratio == pytest.approx(6 / 2)
    assert (skew.empty_clients, skew.empty_classes) == ((), ())


def test_equal_mixes_of_unequal_size_have_no_variation():
    skew = skew_of(np.array([[10, 30], [1, 3]]))
    assert skew.total_variation == pytest.approx(0, abs=1e-15)
    assert skew.size_ratio == pytest.approx(10)


def test_empty_clients_and_classes_are_named_and_left_out_of_the_means():
    skew = skew_of(np.array([[0, 0, 0], [5, 0, 0], [0, 0, 5], [0, 0, 0]]))
    assert skew.empty_clients == (0, 3)
    assert skew.empty_classes == (1,)
    assert skew.total_variation == pytest.approx(1)
    assert skew.classes_per_client == pytest.approx(1)
    assert skew.imbalance == float("inf")
    assert skew.size_ratio == pytest.approx(1)


def test_a_single_client_has_no_pairs():
    assert skew_of(np.array([[3, 4]])).total_variation == 0.0


def test_nobody_holding_anything_is_no_crash():
    skew = skew_of(np.zeros((2, 2), np.int64))
    assert skew.empty_clients == (0, 1)
    assert skew.empty_classes == (0, 1)


def test_beyond_max_pairs_evenly_spaced_clients_stand_for_all():
    counts = np.array([[1, 0]] * 3 + [[0, 1]] * 2)
    # positions 0, 2, 4 of five: shares (1,0), (1,0), (0,1), distances 0, 1, 1
    assert skew_of(counts, max_pairs=3).total_variation == pytest.approx(2 / 3)
    assert skew_of(counts).total_variation == pytest.approx(6 / 10)  # 3 * 2 of 10 pairs differ


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_the_shift_is_in_standard_deviations(shift: float) -> None:
    assert feature_shift(two_domains(shift)) == pytest.approx(shift, rel=0.1, abs=1e-6)


def test_no_shift_without_domains_or_between_tokens() -> None:
    data = two_domains(1.0)
    assert feature_shift(Dataset(data.x, data.y, data.classes)) is None
    tokens = Dataset(
        torch.zeros(400, 5, dtype=torch.int64), data.y, data.classes, domain=data.domain, domains=data.domains
    )
    assert feature_shift(tokens) is None
