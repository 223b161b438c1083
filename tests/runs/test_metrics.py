"""A metric of a plug-in appears in all that a run gives, on every engine, with no other change."""

import json
import math

import numpy as np
import pytest
import torch

import fedloom as fl
from brier import Brier
from fedloom.core.errors import ConfigError
from fedloom.data import from_arrays
from fedloom.evaluation import METRICS, Predictions
from fedloom.flower.in_process import run_in_process
from fedloom.results.comparison import Comparison
from fedloom.results.report import write_report
from fedloom.results.result import Result
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from flower_world import config_of

CONFIG = {"scenario": {"source": "digits", "partition": "iid", "clients": 3}}
EVALUATION = {"every": 3, "protocol": "personal/local", "metrics": ["brier_score"]}


def test_brier_by_hand():
    logits = torch.tensor([[math.log(3), 0.0], [0.0, 0.0]])  # shares (3/4, 1/4), (1/2, 1/2)
    state = Brier.new(Predictions(logits, torch.tensor([0, 1])))
    assert state.compute() == pytest.approx((2 * 0.25**2 + 2 * 0.5**2) / 2)


def test_a_plugin_metric_is_in_files_tables_report_and_over_flower(tmp_path):
    result = run(config_of("ditto", evaluation=EVALUATION), out=tmp_path / "run")
    value = result.numbers["metrics"]["brier_score"]
    assert 0 < value < 2

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["metrics"].keys() == {
        *("balanced_accuracy", "macro_f1", "ece", "brier_score", "majority_global", "majority_own")
    }
    assert summary["metrics"]["brier_score"] == value
    rows = [row for row in Result.read(tmp_path / "run").rows if row["name"].startswith("brier_score")]
    assert {row["name"] for row in rows} >= {"brier_score", "brier_score_pooled"}
    by_client = [row["value"] for row in rows if row["client"] is not None and row["round"] == rows[-1]["round"]]
    assert sum(by_client) / len(by_client) == pytest.approx(value)

    assert f"{value:.3f}" in Comparison([result]).table("markdown")
    assert "brier_score" in Comparison([result]).table("csv").splitlines()[0].split(",")
    write_report([result], tmp_path / "report.html")
    assert f"{value:.4f}" in (tmp_path / "report.html").read_text()

    remote = run_in_process(config_of("ditto", evaluation=EVALUATION))
    assert remote.numbers["metrics"] == result.numbers["metrics"]
    workers = run(config_of("ditto", evaluation=EVALUATION, engine={"name": "processes", "workers": 2}))
    assert workers.numbers["metrics"] == result.numbers["metrics"]


@pytest.mark.parametrize("higher", [True, False])
def test_a_run_records_the_direction_of_a_plugin_metric(monkeypatch, higher):
    monkeypatch.setattr(Brier, "higher_is_better", higher)
    result = run(config_of("fedavg", evaluation={"metrics": ["brier_score", "brier"]}))
    assert result.numbers["higher_is_better"] == {"brier_score": higher}
    assert [result.higher_is_better(name) for name in ("brier_score", "brier", "auroc")] == [higher, False, True]


ALL = [name for name in METRICS.names() if name not in ("brier_score", "domain_accuracy")]  # digits have no domains
ALL.append("sensitivity@specificity=0.9")


@pytest.mark.parametrize(("method", "protocol"), [("ditto", "personal/local"), ("fedavg", "global/local")])
def test_all_metrics_are_the_same_on_every_engine(method, protocol):
    evaluation = {"every": 3, "protocol": protocol, "metrics": ALL}
    result = run(config_of(method, evaluation=evaluation))
    workers = run(config_of(method, evaluation=evaluation, engine={"name": "processes", "workers": 2}))
    remote = run_in_process(config_of(method, evaluation=evaluation))
    numbers, sent = result.numbers["metrics"], remote.numbers["metrics"]
    assert workers.numbers["metrics"] == numbers
    assert numbers.keys() == {*ALL, "majority_global", "majority_own"}
    assert numbers.pop("attack_success") is sent.pop("attack_success") is None
    for name in [name for name in ALL if name.startswith("calibration_") and protocol.startswith("personal")]:
        assert numbers.pop(name) is sent.pop(name) is None  # scores of several models are never pooled
    # confidences leave a node summed in bins, whatever the protocol
    assert numbers.pop("adaptive_ece") == pytest.approx(sent.pop("adaptive_ece"), abs=0.02)
    assert sent == pytest.approx(numbers, rel=1e-12)


def test_runs_without_further_metrics_have_the_fingerprint_that_they_had():
    plain, with_metric = parse(CONFIG), parse(CONFIG | {"evaluation": {"metrics": ["brier_score"]}})
    assert not {"metrics", "scores_mib"} & plain.resolved()["evaluation"].keys()
    assert plain.fingerprint() != with_metric.fingerprint()


def test_a_metric_that_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match=r"evaluation\.metrics = 'brier_scor': did you mean 'brier"):
        parse(CONFIG | {"evaluation": {"metrics": ["brier_scor"]}})


def test_few_shot_takes_no_further_metric():
    with pytest.raises(ConfigError, match="few-shot measures accuracy and loss alone"):
        parse(CONFIG | {"evaluation": {"metrics": ["brier_score"], "protocol": "few-shot"}})


HOSPITALS = {"healthy": 0.9, "ill": 0.07, "very ill": 0.03}


def hospital_data(samples=600):
    """Classes of 90, 7 and 3 %, whose single feature says nothing."""
    labels = np.repeat(np.arange(3), [round(share * samples) for share in HOSPITALS.values()])
    return from_arrays(np.zeros((samples, 1), np.float32), labels, classes=[*HOSPITALS])


def test_a_model_that_finds_no_patient_is_named():
    data = hospital_data()
    result = fl.run("fedavg", scenario=fl.scenario(data, clients=3), rounds=3, model="logistic")
    assert result.numbers["accuracy"] == pytest.approx(0.9, abs=0.03)
    metrics, details = result.numbers["metrics"], result.numbers["details"]
    assert metrics["balanced_accuracy"] == pytest.approx(1 / 3)
    assert metrics["majority_global"] == pytest.approx(result.numbers["accuracy"])
    (note,) = [text for text in result.numbers["degenerate"] if "always predicting" in text]
    assert "the most frequent class, healthy, gives (balanced accuracy 0.333, chance 0.333)" in note
    assert "; no test sample of 2 of 3 classes is found (ill, very ill)" in note
    assert details["recall"]["by_class"] == [1.0, 0.0, 0.0]
    confusion = np.array(details["balanced_accuracy"]["confusion"])
    assert (confusion[:, 0] > 0).all()
    assert confusion[:, 1:].sum() == 0


def test_the_chance_of_all_classes_is_not_beside_a_mean_over_clients():
    """A client's chance depends on the classes in its own test."""
    scenario, evaluation = fl.scenario(hospital_data(), clients=3), {"protocol": "personal/local"}
    result = fl.run("local", scenario=scenario, rounds=1, model="logistic", evaluation=evaluation)
    (note,) = [text for text in result.numbers["degenerate"] if "always predicting" in text]
    assert ", mean over clients)" in note
    assert "chance" not in note


@pytest.mark.parametrize(
    ("evaluation", "says"),
    [
        ({"select_by": "auroc"}, "evaluation.select_by = 'auroc': not measured; add it to evaluation.metrics"),
        ({"select_by": "acuracy"}, "evaluation.select_by = 'acuracy': did you mean 'accuracy'"),
        ({"select_by": "majority_own"}, "evaluation.select_by = 'majority_own': known: accuracy"),
        ({"select_by": "macro_f1", "protocol": "few-shot"}, "few-shot measures accuracy and loss"),
        ({"select_by": "attack_success"}, "needs to know the attack"),
        ({"metrics": ["auroc", "f2"]}, "evaluation.metrics = 'f2': "),
        ({"protocols": []}, r"evaluation.protocols = \[\]: a run needs a test; name a protocol, or leave the key out"),
    ],
)
def test_a_metric_that_cannot_be_used_is_refused(evaluation, says):
    with pytest.raises(ConfigError, match=says) as refusal:
        parse(CONFIG | {"evaluation": evaluation})
    assert "\n" not in str(refusal.value)


def test_any_metric_selects_the_round():
    evaluation = {"select": "best_val", "select_by": "brier", "metrics": ["brier"]}
    scenario = fl.scenario("digits", partition="iid", clients=3, val=0.3)
    result = fl.run("fedavg", scenario=scenario, rounds=4, evaluation=evaluation)
    rounds, values = result.curve("brier", "val")
    best = rounds[values.index(min(values))]
    assert result.numbers["metrics"]["brier"] == dict(zip(*result.curve("brier"), strict=True))[best]
    assert result.numbers["accuracy"] == dict(zip(*result.curve("accuracy"), strict=True))[best]
