"""Metrics against golden numbers (numpy, float64) and scikit-learn."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fedloom.core.records import to_plain
from fedloom.evaluation.metric import METRICS, MetricStates, Predictions
from fedloom.evaluation.metrics.calibration import sums_in_bins
from fedloom.evaluation.plain_states import states_from_plain

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "metrics.json").read_text())["measures"]
NAMES = (
    *("accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "precision", "recall", "auroc", "average_precision"),
    *("ece", "adaptive_ece", "brier", "nll"),
)
# Added to a confusion matrix it leaves the sums of rows and columns and the correct predictions as they are.
TURNED = 100 * np.array([[0, 1, -1, 0], [-1, 0, 1, 0], [1, -1, 0, 0], [0, 0, 0, 0]])
KINDS = {name: METRICS.get(name) for name in NAMES}


def states_of(logits, labels, limit=64 << 20):
    logits, labels = torch.tensor(logits, dtype=torch.float64), torch.tensor(labels, dtype=torch.int64)
    if not len(labels):
        return MetricStates(0)
    return MetricStates.new(Predictions(logits, labels, scores_bytes=limit), KINDS)


CLIENTS = [states_of(*client) for client in zip(GOLDEN["logits"], GOLDEN["labels"], strict=True)]
TESTED = [*zip((GOLDEN["clients"][str(k)] for k in range(4)), CLIENTS, strict=True)]
TESTED.append((GOLDEN["pooled"], MetricStates.merged(CLIENTS)))


def close(value, expected):
    return math.isnan(value) if expected is None else value == pytest.approx(expected, abs=1e-7)


def all_close(values, expected):
    rounded = [[None if value is None else round(value, 6) for value in row] for row in (values, expected)]
    return rounded[0] == rounded[1]


@pytest.mark.parametrize(("golden", "states"), TESTED)
def test_values_of_each_client_and_of_all(golden, states):
    for name in ("accuracy", "balanced_accuracy", "macro_f1", "weighted_f1", "brier", "nll"):
        assert close(states.value(name), golden[name]), name
    assert close(states.value("ppv"), golden["macro_precision"])  # over predicted classes alone
    for name in ("auroc", "average_precision"):
        assert close(states.value(name), golden[name]["macro"]), name
    assert close(states.value("ece"), golden["calibration"]["ece"])
    assert close(states.value("adaptive_ece"), golden["calibration"]["ece_adaptive"])


@pytest.mark.parametrize(("golden", "states"), [tested for tested in TESTED if tested[1].total])
def test_values_by_class(golden, states):
    counts = states.states["class_counts"]
    assert counts.vectors()[:2].tolist() == [golden["support"], golden["predicted"]]
    assert counts.confusion.tolist() == golden["confusion"]
    assert all_close(states.details("recall")["by_class"], golden["recall"])
    assert all_close(states.details("precision")["by_class"], golden["precision"])
    assert all_close(states.details("macro_f1")["by_class"], golden["f1"])
    for name in ("auroc", "average_precision"):
        details, expected = states.details(name), golden[name]
        assert all_close(details["by_class"], expected["by_class"])
        assert all_close([details["weighted"]], [expected["weighted"]])
        assert details["classes"] == expected["classes"]
    assert torch.allclose(states.states["ece"].sums, torch.tensor(golden["calibration"]["sums"]).double(), atol=1e-7)


@pytest.mark.parametrize("bins", [4, 16, 4096])
def test_binned_auroc_is_within_its_bound(bins):
    scores = MetricStates.merged(CLIENTS).states["class_scores"]
    exact, (auroc, _, bound, _) = scores.values()[0], scores.binned(bins).values()
    defined = ~auroc.isnan()
    assert bool(((exact - auroc).abs()[defined] <= bound[defined] + 1e-12).all())
    assert defined.tolist() == (~exact.isnan()).tolist()


def test_a_confidence_on_an_edge_is_in_the_lower_bin():
    edge = GOLDEN["confidence_on_an_edge"]
    predictions = Predictions(torch.tensor(edge["logits"], dtype=torch.float64), torch.tensor(edge["labels"]))
    correct = (predictions.predicted == predictions.labels).double()
    sums = sums_in_bins(predictions.probabilities.amax(1), correct, edge["bins"])
    assert close(float((sums[:, 1] - sums[:, 2]).abs().sum() / 3), edge["ece"])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("balanced_accuracy", "WRONG_balanced_accuracy_over_all_classes"),
        ("macro_f1", "WRONG_macro_f1_over_held_classes"),
        ("macro_f1", "WRONG_macro_f1_mean_of_batches"),
        ("auroc", "WRONG_auroc_missing_is_half"),
        ("auroc", "WRONG_auroc_ties_lost"),
        ("auroc", "WRONG_auroc_of_logits"),
        ("ece", "WRONG_ece_mean_of_clients_for_pooled"),
        ("brier", "WRONG_brier_true_class_only"),
        ("nll", "WRONG_nll_of_probabilities_as_logits"),
    ],
)
def test_likely_mistakes_are_not_made(name, wrong):
    assert abs(MetricStates.merged(CLIENTS).value(name) - GOLDEN[wrong]) > 1e-3


def random_scores(seed, samples=60, classes=4):
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=(samples, classes)) * 2) / 2  # with ties
    return logits, rng.integers(0, classes - 1, samples)  # the last class is missing


def same(one, other):
    values, others = ([states.value(name) for name in NAMES] for states in (one, other))
    return values == pytest.approx(others, rel=1e-12, abs=1e-12, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 60), max_size=5), st.randoms(), st.sampled_from([0, 400, 9999]))
def test_cut_and_merged_in_any_order(seed, cuts, random, limit):
    logits, labels = random_scores(seed)
    edges = sorted({0, *cuts, 60})
    parts = [states_of(logits[a:b], labels[a:b], limit) for a, b in itertools.pairwise(edges)]
    random.shuffle(parts)
    while len(parts) > 1:
        index = random.randrange(len(parts) - 1)
        parts[index : index + 2] = [MetricStates.merged(parts[index : index + 2])]
    whole = states_of(logits, labels, limit)
    assert same(parts[0], whole)
    assert parts[0].states["class_counts"] == whole.states["class_counts"]
    assert parts[0].states["class_scores"].bins.equal(whole.states["class_scores"].bins)
    assert same(whole.reduced(), whole)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_scikit_learn_agrees(seed):
    logits, labels = random_scores(seed)
    states, predicted = states_of(logits, labels), logits.argmax(1)
    shares = torch.tensor(logits).softmax(1).float().numpy()
    present = sorted({*labels.tolist()})
    recall = sk.recall_score(labels, predicted, labels=present, average="macro", zero_division=0)
    assert states.value("balanced_accuracy") == pytest.approx(recall)
    for name, average in (("macro_f1", "macro"), ("weighted_f1", "weighted")):
        assert states.value(name) == pytest.approx(sk.f1_score(labels, predicted, average=average))
    auroc = [sk.roc_auc_score(labels == label, shares[:, label]) for label in present]
    assert states.value("auroc") == pytest.approx(np.mean(auroc))
    precision = [sk.average_precision_score(labels == label, shares[:, label]) for label in present]
    assert states.value("average_precision") == pytest.approx(np.mean(precision))
    gaps = torch.tensor(logits).softmax(1).numpy() - np.eye(4)[labels]
    assert states.value("brier") == pytest.approx(np.square(gaps).sum(1).mean())
    assert states.value("nll") == pytest.approx(
        sk.log_loss(labels, torch.tensor(logits).softmax(1).numpy(), labels=range(4))
    )


def test_oracles():
    perfect = states_of([[900.0, 0, 0], [0, 900, 0], [0, 0, 900]], [0, 1, 2])
    expected = dict.fromkeys(NAMES, 1.0) | dict.fromkeys(("ece", "adaptive_ece", "brier", "nll"), 0.0)
    assert {name: perfect.value(name) for name in NAMES} == expected
    constant = states_of([[0.0, 0, 0]] * 4, [0, 0, 1, 2])
    assert (constant.value("auroc"), constant.value("accuracy")) == (0.5, 0.5)
    one_class = states_of([[1.0, 0], [0, 1.0], [2.0, 0]], [0, 0, 0])
    assert one_class.value("balanced_accuracy") == one_class.value("accuracy")
    assert math.isnan(one_class.value("auroc"))
    two = states_of([[1.0, 0], [0, 1.0], [0.5, 0]], [0, 1, 1])
    assert two.details("auroc")["by_class"][0] == two.details("auroc")["by_class"][1]


def test_states_leave_a_node_as_sums_of_one_shape():
    logits, labels = random_scores(3)
    example = states_of([[0.0] * 4], [0]).portable()
    parts = [states_of(logits[:20], labels[:20]), states_of(logits[20:], labels[20:])]
    sent = [
        states_from_plain(MetricStates(**json.loads(json.dumps(to_plain(part.portable())))), example) for part in parts
    ]
    for part, received in zip(parts, sent, strict=True):
        assert received.states["class_scores"].scores.numel() == 0
        exact = [name for name in NAMES if name != "adaptive_ece"]
        assert [received.value(name) for name in exact] == pytest.approx([part.value(name) for name in exact])
    whole, pooled = states_of(logits, labels), MetricStates.merged(sent)
    assert pooled.value("macro_f1") == whole.value("macro_f1")
    assert pooled.value("auroc") == pytest.approx(whole.value("auroc"), abs=max(pooled.details("auroc")["bound"][:3]))
    assert pooled.details("auroc")["note"].startswith("binned, off by at most")


@pytest.mark.parametrize(
    ("state", "field", "change"),
    [
        ("class_counts", "confusion", lambda matrix: [[-1, *matrix[0][1:]], *matrix[1:]]),
        ("class_counts", "confusion", lambda matrix: (np.array(matrix) + TURNED).tolist()),
        ("class_counts", "confusion", lambda matrix: [[matrix[0][0] + 1, *matrix[0][1:]], *matrix[1:]]),
        ("class_scores", "by_class", lambda rows: [[2.0] * 4, *rows[1:]]),
        ("class_scores", "by_class", lambda rows: [*rows[:3], [0.0] * 4]),
        ("class_scores", "bins", lambda bins: [bins[0], bins[0]]),
        ("ece", "sums", lambda rows: [[1.0, 0.0, 2.0], *rows[1:]]),
        ("ece", "sums", lambda rows: [None, *rows[1:]]),
        ("ece", "sums", lambda rows: [[rows[0][0], -5.0, rows[0][2]], *rows[1:]]),
        ("brier", "value_sum", lambda _: -1.0),
        ("brier", "value_sum", lambda _: 1000.0),
        ("nll", "total", lambda _: 3),
        ("nll", "value_sum", lambda _: -1.0),
    ],
)
def test_states_that_cannot_be_are_refused(state, field, change):
    logits, labels = random_scores(4)
    example = states_of([[0.0] * 4], [0]).portable()
    plain = to_plain(states_of(logits, labels).portable())["states"]
    plain[state][field] = change(plain[state][field])
    with pytest.raises((ValueError, TypeError)):
        states_from_plain(MetricStates(60, plain), example)
