"""Metrics of samples with several labels against golden numbers, in parts, in bins and as states of another machine."""

import json
import math
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.core.records import to_plain
from fedloom.evaluation.metric import MetricStates, Predictions
from fedloom.evaluation.metrics import metric_kinds
from fedloom.evaluation.metrics.calibration import at_threshold, best_threshold
from fedloom.evaluation.plain_states import states_from_plain
from fedloom.methods import cross_entropy

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "clinic_labels.json").read_text())["multi_label"]
NAMES = ("auroc", "average_precision", "hamming", "exact_match", "macro_f1", "micro_f1", "micro_recall", "precision")
KINDS = metric_kinds(NAMES, multi=True)
LOGITS, LABELS = torch.tensor(GOLDEN["logits"]), torch.tensor(GOLDEN["labels"])


def states(scores_bytes: int = 1 << 20) -> MetricStates:
    parts = [slice(0, 2), slice(2, 3), slice(3, 6)]
    return MetricStates.merged(
        MetricStates.new(Predictions(LOGITS[part], LABELS[part], scores_bytes=scores_bytes), KINDS) for part in parts
    )


def check(measured: MetricStates, tolerance: float = 1e-12) -> None:
    expected = {
        "auroc": GOLDEN["auroc_macro"],
        "average_precision": GOLDEN["map"],
        "accuracy": GOLDEN["hamming"],
        "hamming": GOLDEN["hamming"],
        "exact_match": GOLDEN["exact_match_of_complete_rows"],
        "macro_f1": sum(GOLDEN["f1_by_label"]) / 3,
        "micro_f1": GOLDEN["f1_micro"],
        "loss": GOLDEN["bce_mean_over_observed"],
    }
    assert {name: measured.value(name) for name in expected} == pytest.approx(expected, abs=tolerance)
    by_label = {"auroc": "auroc_by_label", "average_precision": "ap_by_label", "macro_f1": "f1_by_label"}
    for name, key in by_label.items():
        assert measured.details(name)["by_class"] == pytest.approx(GOLDEN[key], abs=tolerance)


def test_golden_values():
    check(states())


def test_bins_keep_ranks_within_their_bound():
    # 38 to 41 share a bin: the bound says by how much the values may be off
    bound = max(value for value in states(scores_bytes=1).details("auroc")["bound"] if value is not None)
    assert states(scores_bytes=1).value("auroc") == pytest.approx(GOLDEN["auroc_macro"], abs=bound + 1e-12)


def test_states_of_another_machine():
    example = MetricStates.new(Predictions(torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.int64)), KINDS).portable()
    sent = to_plain(dict(states().portable().states))
    again = states_from_plain(MetricStates(6, sent), example)
    assert again.value("accuracy") == GOLDEN["hamming"]
    sent["class_counts"]["counts"][3][0] = 7  # more records of a label than samples
    with pytest.raises(ValueError, match="6 samples cannot have"):
        states_from_plain(MetricStates(6, sent), example)


def test_loss_is_the_mean_over_recorded_labels():
    assert float(cross_entropy(LOGITS, LABELS).mean()) == pytest.approx(GOLDEN["bce_mean_over_observed"], rel=1e-6)
    assert float(cross_entropy(LOGITS, torch.full_like(LABELS, -1)).mean()) == 0


def test_a_label_without_records_is_left_out():
    labels = LABELS.clone()
    labels[:, 1] = -1
    alone = MetricStates.new(Predictions(LOGITS, labels), KINDS)
    assert alone.details("auroc")["by_class"][1] is None
    assert alone.value("auroc") == pytest.approx((GOLDEN["auroc_by_label"][0] + GOLDEN["auroc_by_label"][2]) / 2)
    nothing = MetricStates.new(Predictions(LOGITS, torch.full_like(LABELS, -1)), KINDS)
    assert all(math.isnan(nothing.value(name)) for name in ("accuracy", "loss", "auroc", "macro_f1", "exact_match"))


def test_other_metrics_are_refused():
    with pytest.raises(ConfigError, match=r"\['brier'\]: not defined for samples with several labels; take accuracy"):
        metric_kinds(["brier"], multi=True)


def test_threshold_of_a_label():
    chosen = best_threshold(states(), 1, "youden")
    assert (chosen["threshold"], chosen["positives"], chosen["negatives"]) == (39.5, 3, 3)
    assert at_threshold(states(), 1, 39.5)["decision_sensitivity"] == pytest.approx(2 / 3)
