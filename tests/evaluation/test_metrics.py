"""Tested: sums that merge, so that every mean is right."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedloom.evaluation import metrics  # not the class alone: pytest would collect it by its name

LN3 = math.log(3)


def test_a_batch_by_hand():
    # softmax of (ln 3, 0) is (3/4, 1/4)
    logits = torch.tensor([[LN3, 0.0], [LN3, 0.0], [0.0, LN3]])
    tested = metrics.Tested.of(logits, torch.tensor([0, 1, 1]))
    assert (tested.correct, tested.total) == (2, 3)
    assert tested.loss_sum == pytest.approx(2 * math.log(4 / 3) + math.log(4), rel=1e-6)
    assert tested.accuracy == pytest.approx(2 / 3)
    assert tested.loss == pytest.approx(tested.loss_sum / 3)


def test_sums_weigh_every_sample_the_same():
    merged = metrics.Tested.sum([metrics.Tested(1, 2.0, 1), metrics.Tested(0, 4.0, 9)])
    assert merged == metrics.Tested(1, 6.0, 10)
    assert merged.accuracy == pytest.approx(0.1)  # not the mean of 1 and 0
    assert merged.loss == pytest.approx(0.6)


def test_no_parts_and_no_samples_give_nan_and_not_zero():
    for empty in (metrics.Tested.sum([]), metrics.Tested(0, 0.0, 0)):
        assert empty.total == 0
        assert math.isnan(empty.accuracy)
        assert math.isnan(empty.loss)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**31))
def test_cutting_into_batches_changes_nothing(samples, batch, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(samples, 4, generator=generator)
    labels = torch.randint(0, 4, (samples,), generator=generator)
    whole = metrics.Tested.of(logits, labels)
    parts = zip(logits.split(batch), labels.split(batch), strict=True)
    merged = metrics.Tested.sum(metrics.Tested.of(*part) for part in parts)
    assert (merged.correct, merged.total) == (whole.correct, whole.total)
    assert merged.loss_sum == pytest.approx(whole.loss_sum, rel=1e-5)
