"""Metric states: sums that merge, so that every mean is right."""

import math
from dataclasses import dataclass

import pytest
import torch

from fedloom.core.records import to_plain
from fedloom.evaluation.metric import METRICS, Metric, MetricStates, Predictions
from fedloom.evaluation.metrics import ALWAYS, Accuracy, AttackSuccess, Loss
from fedloom.evaluation.plain_states import states_from_plain

LN3 = math.log(3)
KINDS = {name: METRICS.get(name) for name in ALWAYS}


def states(correct: int, loss_sum: float, total: int) -> MetricStates:
    return MetricStates(total, {"accuracy": Accuracy(correct, total), "loss": Loss(loss_sum, total)})


def test_a_batch_by_hand():
    # softmax of (ln 3, 0) is (3/4, 1/4)
    logits = torch.tensor([[LN3, 0.0], [LN3, 0.0], [0.0, LN3]])
    batch = MetricStates.new(Predictions(logits, torch.tensor([0, 1, 1])), KINDS)
    assert batch.states["accuracy"] == Accuracy(2, 3)
    assert batch.states["attack_success"] == AttackSuccess(0, 0)
    assert batch.total == 3
    assert batch.value("accuracy") == pytest.approx(2 / 3)
    assert batch.value("loss") == pytest.approx((2 * math.log(4 / 3) + math.log(4)) / 3, rel=1e-6)
    assert math.isnan(batch.value("attack_success"))


@pytest.mark.parametrize("scores_bytes", [64 << 20, 0])
@pytest.mark.parametrize("name", ["auroc", "average_precision"])
def test_scores_that_are_no_numbers_rank_nobody(name, scores_bytes):
    """A model that diverged has the values of one that gives all samples the same score, whatever their order."""
    labels = torch.tensor([0, 0, 1, 1, 1])
    lost, equal = (
        METRICS.get(name).new(Predictions(torch.full((5, 2), score), labels, scores_bytes=scores_bytes)).compute()
        for score in (math.nan, 0.0)
    )
    assert lost == pytest.approx(equal)
    assert name != "auroc" or lost == 0.5


def test_success_counts_the_samples_that_are_aimed_at():
    logits = torch.tensor([[LN3, 0.0], [LN3, 0.0], [0.0, LN3]])
    targets = torch.tensor([-1, 0])  # class 1 shall be taken for class 0
    batch = MetricStates.new(Predictions(logits, torch.tensor([0, 1, 1]), targets), KINDS)
    assert batch.states["attack_success"] == AttackSuccess(1, 2)


def test_sums_weigh_every_sample_the_same():
    merged = MetricStates.merged([states(1, 2.0, 1), states(0, 4.0, 9)])
    assert merged == states(1, 6.0, 10)
    assert merged.value("accuracy") == pytest.approx(0.1)  # not the mean of 1 and 0
    assert merged.value("loss") == pytest.approx(0.6)


def test_no_parts_and_no_samples_give_nan_and_not_zero():
    for empty in (MetricStates.merged([]), states(0, 0.0, 0)):
        assert empty.total == 0
        assert math.isnan(empty.value("accuracy"))
        assert math.isnan(empty.value("loss"))


def plain(whole):
    return MetricStates(**to_plain(whole))


def test_states_cross_as_plain_numbers():
    whole = states(1, math.inf, 4)
    example = states(1, 0.5, 1)
    assert states_from_plain(plain(whole), example) == whole
    assert states_from_plain(MetricStates(0), example) == MetricStates(0)


@dataclass(frozen=True, slots=True)
class Confusion(Metric):
    """Counts [C, C] of true and predicted classes."""

    counts: torch.Tensor

    @classmethod
    def new(cls, predictions):
        raise NotImplementedError

    def compute(self):
        return float(self.counts.diagonal().sum() / self.counts.sum())


def test_tensors_keep_dtype_and_shape():
    example = MetricStates(1, {"confusion": Confusion(torch.tensor([[1, 0], [0, 0]]))})
    sent = MetricStates(4, {"confusion": Confusion(torch.tensor([[2, 1], [0, 1]]))})
    again = states_from_plain(plain(sent), example).states["confusion"]
    assert again.counts.dtype == torch.int64
    assert again.counts.tolist() == [[2, 1], [0, 1]]


@pytest.mark.parametrize(
    "counts", [[[1, 2]], [1, 2], [[1.5, 0], [0, 0]], [[2**60, 0], [0, 0]], [[math.nan, 0], [0, 0]], [[1], [1, 2]], "x"]
)
def test_tensors_that_cannot_be_added_are_refused(counts):
    example = MetricStates(1, {"confusion": Confusion(torch.tensor([[1, 0], [0, 0]]))})
    with pytest.raises(ValueError, match=r"."):
        states_from_plain(MetricStates(4, {"confusion": {"counts": counts}}), example)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"accuracy": {"correct": 5, "total": 4}}, "5 of 4 samples cannot be correct"),
        ({"accuracy": {"correct": 1, "total": 3}}, "cannot be correct"),
        ({"accuracy": {"correct": 1.0, "total": 4}}, "accuracy.correct: need int"),
        ({"accuracy": {"correct": True, "total": 4}}, "accuracy.correct: need int"),
        ({"accuracy": {"correct": 1}}, "need the fields correct, total"),
        ({"brier": {}}, "states of accuracy, brier, loss; need accuracy, loss"),
        ({"loss": {"value_sum": "1", "total": 4}}, "loss.value_sum: need float"),
    ],
)
def test_states_that_cannot_be_are_refused(change, says):
    with pytest.raises(ValueError, match=says):
        states_from_plain(MetricStates(4, plain(states(1, 2.0, 4)).states | change), states(1, 0.5, 1))
