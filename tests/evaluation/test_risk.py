"""Calibration of one class, thresholds and curves, against golden numbers and other programs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sk
from sklearn.linear_model import LogisticRegression

from fedloom.core.errors import ConfigError
from fedloom.evaluation.metric import METRICS, MetricStates, Predictions
from fedloom.evaluation.metrics.calibration import at_threshold, best_threshold
from fedloom.runs.config.run_config import parse

SCENARIO = {"source": "digits", "partition": "iid", "val": 0.1}
FOLDER = Path(__file__).parents[1] / "golden"
CASES = json.loads((FOLDER / "clinic.json").read_text())["metrics"]
THRESHOLD = json.loads((FOLDER / "clinic_risks.json").read_text())["threshold"]
NAMES = {"intercept": "calibration_intercept", "slope": "calibration_slope", "in_the_large": "calibration_in_the_large"}
PARTS = {"rel": "reliability", "res": "resolution", "unc": "uncertainty"}
PARTS |= {"wbv": "variance_within", "wbc": "covariance_within"}
# The golden solver overflows where no threshold separates the classes: there the scores of the equations are tested.
OVERFLOWS = {
    "saturated other side": ("slope", "intercept"),
    "beyond float64 exp": ("slope", "intercept", "in_the_large"),
}


def states_of(scores, labels, limit=64 << 20):
    column = torch.tensor(scores, dtype=torch.float64)
    logits = torch.stack([torch.zeros_like(column), column], 1)
    kinds = {name: METRICS.get(name) for name in ("auroc", *NAMES.values())}
    return MetricStates.new(Predictions(logits, torch.tensor(labels), scores_bytes=limit), kinds)


def noisy(samples=400, seed=0):
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=samples) * 3
    return scores.tolist(), (rng.random(samples) < 1 / (1 + np.exp(0.7 - 0.4 * scores))).astype(int).tolist()


@pytest.mark.parametrize("case", [c for c in CASES if c["values"].get("calibration")], ids=lambda case: case["name"])
def test_golden_calibration_parts_and_net_benefit(case):
    golden, samples = case["values"], len(case["labels"])
    states = states_of([second - first for first, second in case["logits"]], case["labels"])
    for key, name in NAMES.items():
        if key not in OVERFLOWS.get(case["name"], ()):
            expected = golden["calibration"][key]
            expected = math.nan if expected is None else expected
            assert states.value(name) == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True), key
    parts = states.details("calibration_slope")["brier_parts"]
    assert [parts[name] for name in PARTS.values()] == pytest.approx([golden["brier_parts_10"][k] for k in PARTS])
    rows = {round(row[0], 9): row[1:] for row in states.details("auroc")["curves"][1]}
    for risk, benefit in golden["net_benefit"].items():
        odds = float(risk) / (1 - float(risk))
        found, alarms = rows[round(math.log(odds), 9)]
        assert (found - alarms * odds) / samples == pytest.approx(benefit)


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_calibration_is_the_fit_of_scikit_learn(scale):
    scores, labels = noisy()
    scores = [scale * score for score in scores]
    states = states_of(scores, labels)
    fit = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(np.array(scores)[:, None] / scale, labels)
    assert states.value("calibration_slope") == pytest.approx(fit.coef_[0, 0] / scale, rel=1e-5)
    assert states.value("calibration_intercept") == pytest.approx(fit.intercept_[0], rel=1e-5)
    shifted = torch.tensor(scores).double() + states.value("calibration_in_the_large")
    assert float(shifted.sigmoid().sum()) == pytest.approx(sum(labels))


@pytest.mark.parametrize("name", OVERFLOWS)
def test_scores_far_from_zero_solve_the_equations_of_the_likelihood(name):
    case = next(case for case in CASES if case["name"] == name)
    scores, labels = np.array([second - first for first, second in case["logits"]]), np.array(case["labels"])
    states = states_of(scores.tolist(), labels.tolist())
    intercept, slope, shift = (states.value(NAMES[key]) for key in NAMES)
    risks = 1 / (1 + np.exp(-(intercept + slope * scores)))
    assert [(labels - risks).sum(), ((labels - risks) * scores).sum()] == pytest.approx([0, 0], abs=1e-5)
    assert (1 / (1 + np.exp(-(shift + scores)))).sum() == pytest.approx(labels.sum())


def test_bins_give_nearly_the_same():
    scores, labels = noisy(2000)
    exact, binned = states_of(scores, labels), states_of(scores, labels, limit=0)
    for name in NAMES.values():
        assert binned.value(name) == pytest.approx(exact.value(name), rel=2e-3, abs=2e-3)
    assert binned.details("calibration_slope")["note"] == "binned"
    assert math.isnan(binned.poolable().value("calibration_slope"))


def test_the_curve_has_the_points_of_a_roc_curve():
    scores, labels = noisy()
    curve = np.array(states_of(scores, labels).details("auroc")["curves"][1])
    assert len(curve) < 220
    for threshold, found, alarms in curve:
        taken = np.array(scores) >= threshold
        assert (found, alarms) == (taken[np.array(labels) == 1].sum(), taken[np.array(labels) == 0].sum())
    area = sk.auc(curve[:, 2] / curve[-1, 2], curve[:, 1] / curve[-1, 1])
    assert area == pytest.approx(sk.roc_auc_score(labels, scores), abs=0.01)


def test_golden_threshold():
    states = states_of(THRESHOLD["val_scores"], THRESHOLD["val_labels"])
    chosen = best_threshold(states, 1, "specificity", 0.75)
    assert chosen == {"threshold": THRESHOLD["threshold"], "positives": 2, "negatives": 4}
    shares = at_threshold(states, 1, chosen["threshold"])
    assert list(shares.values()) == [1.0, 0.75, pytest.approx(2 / 3), 1.0]


def brute_force(scores, labels, gain):
    """The highest of the best thresholds, by trying one between all neighbours."""
    distinct = np.unique(scores)
    cuts = [distinct[0] - 1, *((distinct[1:] + distinct[:-1]) / 2), distinct[-1] + 1]
    labels = np.array(labels)
    gains = []
    for cut in cuts:
        taken = np.array(scores) >= cut
        gains.append(gain(taken[labels == 1].sum(), taken[labels == 0].sum(), labels.sum(), (1 - labels).sum()))
    return max(cut for cut, value in zip(cuts, gains, strict=True) if value == max(gains))


@pytest.mark.parametrize(
    ("rule", "amount", "gain"),
    [
        ("specificity", 0.9, lambda found, alarms, p, n: found if alarms <= 0.1 * n + 1e-9 else -1),
        ("sensitivity", 0.9, lambda found, alarms, p, n: -alarms if p - found <= 0.1 * p + 1e-9 else -n - 1),
        ("youden", 0.0, lambda found, alarms, p, n: found * n - alarms * p),
        ("net_benefit", 0.25, lambda found, alarms, p, n: 3 * found - alarms),
        ("cost", 4.0, lambda found, alarms, p, n: 4 * found - alarms),
    ],
)
def test_a_rule_finds_the_best_threshold(rule, amount, gain):
    scores, labels = noisy(90)
    scores = np.round(scores, 1).tolist()  # with ties
    exact = best_threshold(states_of(scores, labels), 1, rule, amount)["threshold"]
    assert exact == pytest.approx(brute_force(scores, labels, gain), abs=1e-6)
    # An edge of a bin parts the same samples.
    edge = best_threshold(states_of(scores, labels, limit=0), 1, rule, amount)["threshold"]
    assert [score >= edge for score in scores] == [score >= exact for score in scores]


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
def test_samples_of_one_kind_have_no_threshold(labels):
    states = states_of([0.1, 0.2, 0.3], labels)
    assert best_threshold(states, 1, "youden") == {}
    assert at_threshold(states, 1, None) == at_threshold(MetricStates(0), 1, 0.5) == {}
    assert all(math.isnan(states.value(name)) for name in NAMES.values())


def test_scores_without_end_have_a_threshold_that_json_holds():
    chosen = best_threshold(states_of([-math.inf, math.inf, 1.0], [0, 1, 0]), 1, "youden")
    assert math.isfinite(chosen["threshold"])
    assert at_threshold(states_of([-math.inf, math.inf, 1.0], [0, 1, 0]), 1, chosen["threshold"]) == {
        "decision_sensitivity": 1.0,
        "decision_specificity": 1.0,
        "decision_ppv": 1.0,
        "decision_npv": 1.0,
    }


def test_ppv_and_npv_at_a_prevalence():
    logits, labels = torch.eye(2)[[1, 1, 1, 0, 0, 0]], torch.tensor([1, 1, 0, 0, 0, 1])
    names = "ppv@prevalence=0.5", "ppv@prevalence=0.02", "npv@prevalence=0.02"
    kinds = {name: METRICS.get(name) for name in names}
    states = MetricStates.new(Predictions(logits, labels), kinds)
    assert states.details("ppv@prevalence=0.02")["by_class"][1] == pytest.approx(0.02 * 2 / (0.02 * 2 + 0.98))
    assert states.details("ppv@prevalence=0.5")["by_class"] == pytest.approx([2 / 3, 2 / 3])
    # Of the class 1 a third is missed, and of the others two thirds are cleared.
    assert states.details("npv@prevalence=0.02")["by_class"][1] == pytest.approx(0.98 * 2 / (0.98 * 2 + 0.02))


def config(**evaluation):
    return parse(
        {"scenario": {"source": "digits", "partition": "iid", "val": 0.1}, "evaluation": evaluation}
    ).evaluation


def test_a_metric_may_be_a_section():
    assert config(metrics=[{"ppv": {"prevalence": 1e-5}}]).metrics == ("ppv@prevalence=0.00001",)
    assert config(metrics=[{"npv": {"prevalence": 0.99}}]).metrics == ("npv@prevalence=0.99",)
    assert config(metrics=[{"sensitivity": {"specificity": 0.9}}]).metrics == ("sensitivity@specificity=0.9",)


@pytest.mark.parametrize(
    "wrong", [*({name: {"prevalence": share}} for name in ("ppv", "npv") for share in (0, 1, 1.5)), "ppv@prevalence=0"]
)
def test_a_prevalence_that_is_no_share_is_one_line(wrong):
    with pytest.raises(ConfigError, match=r"'(0|1|1\.5)' is no share above 0 and below 1; did you mean '[pn]pv@prev"):
        config(metrics=[wrong])


@pytest.mark.parametrize(
    "rule",
    [
        *("net_benefit", "best", None, 3, {}, {"youden": 1}, {"specificity": 0}, {"specificity": 1.01}, {"cost": 0}),
        *({"specificity": True}, {"specificity": "0.9"}, {"net_benefit": 1}, {"sensitivity": math.nan}),
        {"specificity": 0.9, "sensitivity": 0.9},
    ],
)
def test_a_rule_that_is_none_is_one_line(rule):
    with pytest.raises(ConfigError, match=r"^evaluation.decision.rule = .*: need youden, {specificity: 0.95} or "):
        config(decision={"class": "3", "rule": rule})


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"decision": {"rule": "youden"}}, "evaluation.decision.class is missing"),
        ({"decision": {"class": True, "rule": "youden"}}, r"evaluation.decision.class = True: input should be a valid"),
        ({"decision": {"class": "3", "rule": "youden"}, "protocol": "personal/local"}, "the scores of one model"),
        ({"decision": {"class": "3", "rule": "youden"}, "protocol": "few-shot"}, "the scores of one model"),
        ({"intervals": {}, "protocol": "few-shot"}, "few-shot has an interval over episodes"),
        ({"intervals": {"level": 1}}, "evaluation.intervals.level = 1: input should be less than 1"),
        ({"intervals": {"by": "person"}}, "evaluation.intervals.by = 'person'"),
        ({"select_by": "calibration_slope", "metrics": ["calibration_slope"]}, "neither the highest nor the lowest"),
    ],
)
def test_sections_that_cannot_be_are_one_line(keys, why):
    with pytest.raises(ConfigError, match=why):
        config(**keys)


def test_a_decision_comes_back_from_yaml_and_changes_the_fingerprint():
    scenario = {"source": "digits", "partition": "iid", "val": 0.1}
    decision = {"class": 3, "rule": {"specificity": 0.95}}
    with_it, without = (
        parse({"scenario": scenario, "evaluation": {"decision": decision}}),
        parse({"scenario": scenario}),
    )
    assert with_it.resolved()["evaluation"]["decision"] == decision | {"class": "3"}
    assert parse(with_it.resolved()).fingerprint() == with_it.fingerprint() != without.fingerprint()
    assert not {"decision", "intervals"} & without.resolved()["evaluation"].keys()
