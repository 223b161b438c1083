"""Ranks of confident nets, sets of classes, and operating points, against golden numbers and any split of samples."""

import itertools
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sk

from fedloom.core.errors import ConfigError
from fedloom.core.records import to_plain
from fedloom.evaluation.metric import METRICS, MetricStates, Predictions
from fedloom.evaluation.metrics.ranks import log_odds
from fedloom.evaluation.plain_states import states_from_plain
from fedloom.runs.config.run_config import parse

CASES = json.loads((Path(__file__).parents[1] / "golden" / "clinic.json").read_text())["metrics"]
LEVELS = ("0.8", "0.95", "1")
POINTS = {f"sensitivity@specificity={level}": f"sens_at_spec_{level}" for level in LEVELS}
POINTS |= {f"specificity@sensitivity={level}": f"spec_at_sens_{level}" for level in LEVELS}
VALUES = {
    "accuracy": "accuracy",
    "auroc": "auroc",
    "average_precision": "average_precision",
    "balanced_accuracy": "balanced_accuracy",
    "recall": "recall_macro_true",
    "recall_all": "recall_macro_all",
    "precision": "precision_macro_union",
    "precision_all": "precision_macro_all",
    "macro_f1": "f1_macro_union",
    "macro_f1_all": "f1_macro_all",
    "specificity": "specificity_macro_true",
    "mcc": "mcc",
    "brier": "brier",
}
BY_CLASS = {"auroc": "auroc_by_class", "average_precision": "ap_by_class", "recall": "sensitivity"}
BY_CLASS |= {"specificity": "specificity", "ppv": "ppv", "npv": "npv"} | POINTS
KINDS = {name: METRICS.get(name) for name in {**VALUES, **BY_CLASS}}
RANKED = ("auroc", "average_precision", *POINTS)


def number(value):
    return math.nan if value is None else float(value)


def states_of(logits, labels, limit=64 << 20):
    logits = torch.tensor([[number(z) for z in row] for row in logits], dtype=torch.float64)
    return MetricStates.new(Predictions(logits, torch.tensor(labels), scores_bytes=limit), KINDS)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_golden_cases(case):
    golden, states = case["values"], states_of(case["logits"], case["labels"])
    exact = {"abs": 1e-12, "nan_ok": True}
    assert [states.value(name) for name in VALUES] == pytest.approx(
        [number(golden[k]) for k in VALUES.values()], **exact
    )
    for name, key in BY_CLASS.items():
        found = [number(value) for value in states.details(name)["by_class"]]
        assert found == pytest.approx([number(value) for value in golden[key]], **exact), name
    scores = states.states["class_scores"].scores
    assert torch.allclose(scores, torch.tensor([[number(s) for s in row] for row in golden["logodds"]]).double())
    assert states.value("precision") == pytest.approx(golden["sklearn_precision_default"])
    assert states.value("macro_f1") == pytest.approx(golden["sklearn_f1_default"])


def confident(seed, samples=60, classes=3):
    """Logits tens apart, with ties, and labels that they predict in part; the last class is rare or missing."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, samples, p=[0.6, 0.35, 0.05])
    logits = np.round(rng.normal(size=(samples, classes)) * 20) + 20 * np.eye(classes)[labels]
    return logits.tolist(), labels.tolist()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 60), max_size=5), st.randoms(), st.sampled_from([0, 800, 9999]))
def test_any_split_of_the_samples_merges_to_the_same(seed, cuts, random, limit):
    logits, labels = confident(seed)
    edges = sorted({0, *cuts, 60})
    parts = [states_of(logits[a:b], labels[a:b], limit) for a, b in itertools.pairwise(edges)]
    random.shuffle(parts)
    whole, merged = states_of(logits, labels, limit), MetricStates.merged(parts)
    values = [states.value(name) for states in (whole, merged, whole.reduced()) for name in KINDS]
    assert values == pytest.approx(values[: len(KINDS)] * 3, rel=1e-12, abs=1e-12, nan_ok=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 59), st.sampled_from([0.001, 1.0, 30.0]))
def test_sums_of_nodes_are_within_their_bounds(seed, cut, scale):
    logits, labels = confident(seed)
    logits = (np.array(logits) * scale / 20).tolist()
    example = states_of([[0.0] * 3], [0]).portable()
    parts = [states_of(logits[:cut], labels[:cut]), states_of(logits[cut:], labels[cut:])]
    sent = [json.loads(json.dumps(to_plain(part.portable()))) for part in parts]
    pooled = MetricStates.merged(states_from_plain(MetricStates(**part), example) for part in sent)
    whole = states_of(logits, labels)
    for name in ("auroc", *POINTS):
        found, exact = pooled.details(name), whole.details(name)
        assert found["classes"] == exact["classes"]
        for value, expected, bound in zip(found["by_class"], exact["by_class"], found["bound"], strict=True):
            assert (value is expected is None) or abs(value - expected) <= bound + 1e-12, name
            assert value is None or name == "auroc" or value <= expected + 1e-12  # bins offer fewer thresholds
    assert pooled.details("average_precision")["note"] == "binned"


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6))
def test_scikit_learn_agrees_on_confident_nets(seed):
    logits, labels = confident(seed)
    states, scores = states_of(logits, labels), log_odds(torch.tensor(logits, dtype=torch.float64)).numpy()
    predicted, true = np.argmax(logits, 1), np.array(labels)
    for label in set(labels):
        is_class = true == label
        found = {name: states.details(name)["by_class"][label] for name in RANKED}
        assert found["auroc"] == pytest.approx(sk.roc_auc_score(is_class, scores[:, label]))
        assert found["average_precision"] == pytest.approx(sk.average_precision_score(is_class, scores[:, label]))
        false, hit, _ = sk.roc_curve(is_class, scores[:, label], drop_intermediate=False)
        assert found["sensitivity@specificity=0.8"] == pytest.approx(hit[false <= 0.2 + 1e-9].max())
        assert found["specificity@sensitivity=0.8"] == pytest.approx(1 - false[hit >= 0.8 - 1e-9].min())
    assert states.value("mcc") == pytest.approx(sk.matthews_corrcoef(true, predicted))
    everywhere = {"labels": range(3), "average": "macro", "zero_division": 0}
    assert states.value("precision_all") == pytest.approx(sk.precision_score(true, predicted, **everywhere))
    assert states.value("recall_all") == pytest.approx(sk.recall_score(true, predicted, **everywhere))


@pytest.mark.parametrize("classes", [1, 2, 3, 7])
def test_scores_do_not_depend_on_a_constant_or_on_the_order_of_the_classes(classes):
    logits = torch.randn(200, classes, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).mul(8).round()
    order = torch.randperm(classes)
    assert log_odds(logits + 5).equal(log_odds(logits))
    assert log_odds(logits[:, order]).equal(log_odds(logits)[:, order])
    assert torch.cat([log_odds(row) for row in logits.split(1)]).equal(log_odds(logits))


def test_details_say_which_classes_a_mean_is_over():
    states = states_of([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [2.0, 0.0, 0.0]], [0, 2, 0])
    sets = {name: (states.details(name)["set"], states.details(name)["classes"]) for name in KINDS if name in SETS}
    assert sets == SETS


UNDEFINED_AS_0 = "undefined values count as 0"
SETS = {
    "recall": ("classes with tested samples", 2),
    "specificity": ("classes with tested samples", 2),
    "precision": (f"classes with tested samples or predictions, {UNDEFINED_AS_0}", 3),
    "precision_all": (f"all classes, {UNDEFINED_AS_0}", 3),
    "ppv": ("classes with a value", 2),
    "auroc": ("classes that some of the samples have, and others not", 2),
}


@pytest.mark.parametrize("name", ["sensitivity@specificity=0.9", "specificity@sensitivity=1"])
def test_a_level_is_part_of_the_name(name):
    kind = METRICS.get(name)
    assert pickle.loads(pickle.dumps(kind)) is kind is METRICS.get(name)  # noqa: S301
    assert name not in METRICS.names()
    config = parse(
        {"scenario": {"source": "digits", "partition": "iid"}, "evaluation": {"metrics": [name], "select_by": name}}
    )
    assert (config.evaluation.select_by, config.evaluation.metrics) == (name, (name,))
    for wrong in ("0", "0.0", "95", "1.5", "nan", "", "-0.5", "0.9%"):
        with pytest.raises(ConfigError, match=r"did you mean '\w+@\w+=0\.95'"):
            METRICS.get(f"{name.partition('=')[0]}={wrong}")


def test_a_level_that_was_not_asked_for_has_no_value():
    states = MetricStates.new(Predictions(torch.eye(2), torch.tensor([0, 1])), {"auroc": METRICS.get("auroc")})
    assert math.isnan(states.value("sensitivity@specificity=0.9"))
    assert states.details("sensitivity@specificity=0.9") == {}


def test_a_node_that_tests_other_levels_is_refused():
    example = states_of([[0.0] * 3], [0]).portable()
    plain = to_plain(states_of([[0.0] * 3], [0]).portable())["states"]
    plain["class_scores"]["points"] = "specificity@sensitivity=0.5"
    with pytest.raises(ValueError, match=r"points: 'specificity@sensitivity=0\.5'; need 'sensitivity@"):
        states_from_plain(MetricStates(1, plain), example)


# Golden AUROC errors of 4,096 bins, of finer ones, and their number, of scores like these; the draws are not the same.
BINS = {
    "moderate": (0.0006172, 9.036e-05, 7357),
    "confident, gap 36": (0.015851, 8.173e-05, 8154),
    "both tails": (0.0093618, 7.752e-05, 8126),
    "untrained": (0.179275, 0.00062048, 8190),
    "hundreds": (0.00042147, 7.265e-05, 6891),
}


@pytest.mark.parametrize("name", BINS)
def test_a_second_test_in_finer_bins_has_the_golden_bounds(name):
    rng, n = np.random.default_rng(0), 20_000
    labels = (rng.random(n) < 0.3).astype(int)
    scores = {
        "moderate": 1.6 * (rng.normal(size=n) + 0.77 * labels),
        "confident, gap 36": 36 + rng.normal(size=n) + 1.6 * labels,
        "both tails": np.where(rng.random(n) < 0.5, -42, 42) + rng.normal(size=n) + 1.5 * labels,
        "untrained": -2.2 + 0.001 * (rng.normal(size=n) + 1.5 * labels),
        "hundreds": 300 * (rng.normal(size=n) + 1.33 * labels),
    }[name]
    logits, labels = torch.tensor(np.stack([np.zeros(n), scores], 1)), torch.tensor(labels)
    kinds = {name: METRICS.get(name) for name in ("auroc", "average_precision", "sensitivity@specificity=0.95")}
    exact, coarse = (MetricStates.new(Predictions(logits, labels, scores_bytes=b), kinds) for b in (1 << 30, 0))
    bins = coarse.states["class_scores"].bins
    parts = [
        MetricStates.new(Predictions(logits[k::3], labels[k::3], scores_bytes=0, bins=bins), kinds) for k in range(3)
    ]
    fine = MetricStates.merged(parts)
    found = [max(states.details("auroc")["bound"]) for states in (coarse, fine)]
    *bounds, pieces = BINS[name]
    assert found == pytest.approx(bounds, rel=0.15)
    assert int(fine.states["class_scores"].pieces[1].sum()) == pytest.approx(pieces, rel=0.025)
    assert coarse.states["class_scores"].needs_second_test == (found[0] > 0.001)
    for states, bound in zip((coarse, fine), found, strict=True):
        assert abs(states.value("auroc") - exact.value("auroc")) <= bound
    for metric in kinds:  # and operating points on the way
        assert abs(fine.value(metric) - exact.value(metric)) < 0.004
    # States with other bins are added in the equal bins that both have.
    mixed = MetricStates.merged([fine, coarse]).states["class_scores"]
    assert mixed.bins.equal(2 * bins)
    assert not mixed.pieces.numel()


def test_equal_bins_are_those_of_the_golden_map():
    scores = [-1e9, -80000.0, -2.0, 0.0, 0.001, 36.0, 1e12, math.inf]
    state = states_of([[0.0, score] for score in scores], [0] * len(scores), limit=0).states["class_scores"]
    places = [math.floor((math.asinh(score) + 12) / 24 * 4096) for score in scores[:-1]] + [4095]
    assert state.bins[1, 1].nonzero().flatten().tolist() == sorted({min(max(b, 0), 4095) for b in places})
