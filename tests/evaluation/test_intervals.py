"""Intervals by groups: a golden example and simulation, coverage by the right unit, and draws without a value."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.evaluation import Evaluator, MetricStates
from fedloom.evaluation.intervals import intervals, intervals_over_nodes, with_group_sums
from fedloom.evaluation.metrics.basic import SampleScores

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "clinic_risks.json").read_text())["intervals"]


class Grouped(Dataset):
    """Has a place for the groups of its samples."""


def measured(scores, labels, groups, protocol="global/global", clients=None, metrics=("auroc",), **settings):
    """Intervals of a test in which each class-1 score is a logit; `clients` holds lists of test samples."""
    n = len(scores)
    data = Grouped(torch.zeros(n, 1), torch.tensor(labels), ("healthy", "ill"))
    object.__setattr__(data, "group", None if groups is None else torch.tensor(groups))
    views = Views.from_lists([np.array(part, np.int64) for part in clients or [range(n)]])
    none = Views.from_lists([np.zeros(0, np.int64) for _ in range(len(views))])
    evaluator = Evaluator(
        Scenario("toy", data, data, views, none, views), protocol, batch=8, metrics=metrics, keep_scores=True
    )
    logits = torch.stack([torch.zeros(n), torch.tensor(scores)], 1)
    tested, kind = {}, protocol.partition("/")[0]
    for client in range(len(views)) if protocol.endswith("local") else [-1]:
        rows = views.tensor(client) if client >= 0 else torch.arange(n)
        tested[client] = {kind: MetricStates(len(rows), {SampleScores.key: SampleScores(logits[rows], rows)})}
    return intervals(evaluator, tested, lambda _: {}, np.random.default_rng(0), **settings)


def test_few_groups_have_the_golden_deviation_by_a_linear_approximation():
    example = GOLDEN["example"]
    columns = [example[name] for name in ("scores", "labels", "groups")]
    found = measured(*columns, draws=2000)
    auroc = found["values"]["auroc"]
    assert auroc["value"] == example["auroc"]
    assert (found["by"], found["groups"], found["method"]) == ("group", 4, "t with 3 degrees of freedom")
    # The lower bound is value - t(3) se. The bootstrap sees curvature that the golden, linear se does not.
    assert (auroc["value"] - auroc["low"]) / 3.182446 == pytest.approx(example["se_groups"], rel=0.25)
    assert auroc["high"] == 1.0


def simulated(rng, groups=60, rows=5):
    """Rows of 60 persons, who have one label each and much of their score in common."""
    label = (rng.random(groups) < 0.5).astype(int)
    person = label * 1.0 + rng.normal(size=groups)
    group = np.repeat(np.arange(groups), rows)
    scores = person[group] + 0.3 * rng.normal(size=groups * rows)
    return scores.tolist(), label[group].tolist(), group.tolist()


def test_groups_widen_the_interval_as_in_the_golden_simulation():
    widths = {"group": [], "row": []}
    for seed in range(3):
        data = simulated(np.random.default_rng(seed))
        for by, of in widths.items():
            auroc = measured(*data, by=by, draws=200)["values"]["auroc"]
            of.append(auroc["high"] - auroc["low"])
    ratio = np.mean(widths["group"]) / np.mean(widths["row"])
    assert ratio == pytest.approx(GOLDEN["mean_width_groups"] / GOLDEN["mean_width_rows"], rel=0.2)


def test_rows_stand_for_groups_where_there_are_none():
    scores, labels, _ = simulated(np.random.default_rng(0))
    assert measured(scores, labels, None, draws=100)["by"] == "row"
    assert measured(scores, labels, None, draws=100) == measured(scores, labels, None, by="row", draws=100)


def test_groups_are_drawn_within_clients():
    # All errors are at client 1: drawn within clients, their number never changes.
    scores = [9.0] * 20 + [-9.0] * 20
    clients = [range(20), range(20, 40)]
    within = measured(scores, [1] * 40, list(range(40)), clients=clients, draws=100)["values"]["accuracy"]
    assert (within["value"], within["low"], within["high"]) == (0.5, None, None)
    across = measured(scores, [1] * 40, list(range(40)), draws=100)["values"]["accuracy"]
    assert across["low"] < 0.5 < across["high"]


def test_clients_of_one_group_are_drawn_together():
    scores, labels, groups = simulated(np.random.default_rng(1))
    clients = [range(5 * k, 5 * k + 5) for k in range(60)]
    alone, together = (measured(scores, labels, groups, clients=c, draws=100) for c in (clients, None))
    assert alone == together


def test_a_mean_over_clients_is_drawn_as_one():
    scores, labels, groups = simulated(np.random.default_rng(2))
    clients = [range(100), range(100, 300)]
    values = measured(scores, labels, groups, "global/local", clients, draws=100)["values"]
    correct = (np.array(scores) > 0) == np.array(labels)
    assert values["accuracy"]["value"] == pytest.approx((correct[:100].mean() + correct[100:].mean()) / 2)
    assert values["accuracy"]["low"] < values["accuracy"]["value"] < values["accuracy"]["high"]


def test_a_metric_that_many_draws_lack_has_no_interval():
    # One positive of 25: a third of the draws has none, and no AUROC.
    found = measured(np.linspace(-2, 2, 25).tolist(), [0] * 24 + [1], list(range(25)), draws=200)["values"]
    assert found["auroc"]["low"] is None
    assert 0.2 < found["auroc"]["undefined"] / 200 < 0.5
    assert found["accuracy"]["undefined"] == 0
    assert found["accuracy"]["low"] is not None


@pytest.mark.parametrize("labels", [[0], [0, 1]])
def test_one_group_has_no_interval(labels):
    found = measured([1.0] * len(labels), labels, [7] * len(labels), draws=100)
    assert found["groups"] == 1
    assert all(value["low"] is None for value in found["values"].values())
    assert not any(math.isnan(value["value"]) for value in found["values"].values())


ALL = ("auroc", "average_precision", "macro_f1", "recall", "specificity", "mcc", "brier", "nll")


def over_nodes(scores, labels, groups, nodes, by="group", protocol="global/local", metrics=("auroc",), decision=None):
    """Intervals from what `nodes`, lists of samples, send after the first test has pooled their states."""
    n, kind = len(scores), protocol.partition("/")[0]
    data = Grouped(torch.zeros(n, 1), torch.tensor(labels), ("healthy", "ill"))
    object.__setattr__(data, "group", torch.tensor(groups))
    views, none = (Views.from_lists([np.array(of, np.int64) for of in lists]) for lists in (nodes, [[]] * len(nodes)))
    scenario = Scenario("toy", data, data, views, none, views)
    evaluator = Evaluator(scenario, protocol, batch=8, metrics=metrics, keep_scores=True)
    logits, tests = torch.stack([torch.zeros(n), torch.tensor(scores)], 1), {}
    for client, rows in enumerate(nodes):
        samples = SampleScores(logits[rows], torch.tensor(rows))
        states = evaluator.drawn_again(samples, torch.arange(len(rows)))
        states = states if kind == "global" else states.of_one_model()
        tests[client] = MetricStates(len(rows), {**states.states, SampleScores.key: samples})
    found = evaluator.scores("test", {client: {kind: test.portable()} for client, test in tests.items()})
    pooled = found.pooled.portable()
    sent = {k: {kind: with_group_sums(test, evaluator, by, pooled, decision).portable()} for k, test in tests.items()}
    assert not sum(len(states[kind].states[SampleScores.key].logits) for states in sent.values())
    return intervals_over_nodes(evaluator, found, sent, decision, 0.95)


@pytest.mark.parametrize("nodes", [[range(8)], [range(4), range(4, 8)]])
def test_nodes_send_sums_with_the_golden_deviation(nodes):
    example = GOLDEN["example"]
    found = over_nodes(*(example[k] for k in ("scores", "labels", "groups")), [list(rows) for rows in nodes])
    auroc = found["values"]["auroc_pooled"]
    assert (found["groups"], found["method"], auroc["value"]) == (4, "t with 3 degrees of freedom", example["auroc"])
    assert (auroc["value"] - auroc["low"]) / 3.182446305284264 == pytest.approx(example["se_groups"], rel=1e-8)


def width(value):
    return value["high"] - value["low"]


def test_sums_of_nodes_agree_with_the_bootstrap_for_all_pooled_metrics():
    scores, labels, groups = simulated(np.random.default_rng(3))
    steps, metrics = ("sensitivity@specificity=0.95", "ece"), (*ALL, "calibration_slope", "calibration_in_the_large")
    drawn = measured(scores, labels, groups, metrics=metrics, draws=200)["values"]
    nodes, decision = [[*range(150)], [*range(150, 300)]], (1, 0.3)
    found = over_nodes(scores, labels, groups, nodes, metrics=(*metrics, *steps), decision=decision)
    assert (found["by"], found["groups"], found["method"]) == ("group", 60, "normal")
    values = found["values"]
    del drawn["ece"]
    for name, there in drawn.items():
        here = values.get(f"{name}_pooled") or values[name]
        assert here["value"] == pytest.approx(there["value"], abs=0.002), name
        assert width(here) == pytest.approx(width(there), rel=0.2), name
    assert [values[step]["low"] for step in steps] == [None, None]
    positive = (np.array(scores) >= 0.3)[np.array(labels) == 1].reshape(-1, 5).mean(1)  # of each ill person
    sensitivity = values["decision_sensitivity"]
    assert sensitivity["value"] == pytest.approx(positive.mean())
    assert width(sensitivity) == pytest.approx(2 * 1.96 * positive.std() / len(positive) ** 0.5, rel=0.02)
    assert over_nodes(scores, labels, groups, [[*range(300)]], "row")["groups"] == 300


@pytest.mark.parametrize("protocol", ["global/local", "personal/local"])
def test_a_mean_over_nodes_has_the_interval_of_the_bootstrap(protocol):
    scores, labels, groups = simulated(np.random.default_rng(4))
    nodes = [[*range(100)], [*range(100, 300)]]
    drawn = measured(scores, labels, groups, protocol, nodes, metrics=ALL, draws=200)["values"]
    found = over_nodes(scores, labels, groups, nodes, protocol=protocol, metrics=ALL)["values"]
    del drawn["ece"]
    for name, there in drawn.items():
        assert found[name]["value"] == pytest.approx(there["value"], abs=0.002), name
        assert width(found[name]) == pytest.approx(width(there), rel=0.25), name
    assert ("auroc_pooled" in found) == (protocol == "global/local")  # scores of several models are not merged
    assert found["accuracy_pooled"]["low"] < found["accuracy_pooled"]["value"]


def test_a_node_of_one_group_leaves_a_mean_over_nodes_without_interval():
    scores, labels, groups = simulated(np.random.default_rng(5))
    found = over_nodes(scores, labels, groups, [[*range(5)], [*range(5, 300)]])["values"]
    assert found["accuracy"]["low"] is None
    assert found["accuracy_pooled"]["low"] is not None


def test_many_groups_are_put_together():
    rng = np.random.default_rng(6)
    scores, labels = rng.normal(size=1000), (rng.random(1000) < 0.5).astype(int)
    found = over_nodes(scores.tolist(), labels.tolist(), [*range(1000)], [[*range(1000)]])
    accuracy = found["values"]["accuracy_pooled"]
    expected = 2 * 1.96 * (accuracy["value"] * (1 - accuracy["value"]) / 1000) ** 0.5
    assert found["groups"] == 1000
    assert width(accuracy) == pytest.approx(expected, rel=0.15)
