"""A threshold from validation data, from the config to new samples, and intervals of the last test."""

import importlib.util
import json

import numpy as np
import pytest

import fedloom as fl
from command_line import call
from fedloom.core.errors import ConfigError
from fedloom.data import from_arrays
from fedloom.evaluation.metrics.calibration import DECISION
from fedloom.flower.in_process import run_in_process
from fedloom.results.result import Result
from fedloom.results.risk_words import risk_sentences
from fedloom.runs.config.run_config import parse
from fedloom.runs.export.trained import read
from own_world import joined, patients_of_nodes
from support import Stop

RULE = {"class": "ill", "rule": {"specificity": 0.9}}
NEW = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)


def scenario(val=0.2, ill=0.5):
    rng = np.random.default_rng(0)
    y = (rng.random(360) < ill).astype(int)
    x = (rng.normal(size=(360, 4)) + 0.8 * y[:, None]).astype(np.float32)
    return fl.scenario(from_arrays(x, y, classes=["healthy", "ill"], owners=np.arange(360) % 3), val=val)


def trained(out=None, method="fedavg", data=None, callbacks=(), **evaluation):
    settings = {"rounds": 3, "model": "logistic", "engine": "serial", "evaluation": {"decision": RULE, **evaluation}}
    return fl.run(method, scenario=scenario() if data is None else data, out=out, callbacks=callbacks, **settings)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("decision") / "run"
    trained(path, intervals={"draws": 100})
    return path


@pytest.fixture(scope="module")
def numbers(folder):
    return json.loads((folder / "summary.json").read_text())


def test_the_summary_has_the_threshold_and_what_it_gives(folder, numbers):
    decision = numbers["decision"]
    assert (decision["label"], decision["rule"], decision["round"]) == ("ill", {"specificity": 0.9}, 3)
    built = scenario()
    val = built.train_set.y[built.val.order]
    assert (decision["positives"], decision["negatives"]) == (int(val.sum()), int((1 - val).sum()))
    assert numbers["metrics"].keys() >= {*DECISION}
    assert {"auroc", "loss"}.isdisjoint(numbers["metrics"])  # recorded, and not asked for
    # The rule holds on the samples that chose the threshold, and nearly on others.
    assert numbers["metrics"]["decision_specificity"] == pytest.approx(0.9, abs=0.1)


def test_new_samples_get_the_decision_from_folders_and_exports(folder, numbers, tmp_path, capsys):
    np.savez(tmp_path / "new.npz", x=NEW)
    answers = []
    call(capsys, "export", str(folder), "--out", str(tmp_path / "model.safetensors"))
    for model in (folder, tmp_path / "model.safetensors"):
        _, out, _ = call(capsys, "predict", str(model), str(tmp_path / "new.npz"), "--json")
        answers.append(json.loads(out))
    assert answers[0] == answers[1]
    assert answers[0]["decision"] == numbers["decision"]
    for sample in answers[0]["predictions"]:
        odds = np.log(sample["probabilities"]["ill"] / sample["probabilities"]["healthy"])
        assert sample["decision"] == (odds >= numbers["decision"]["threshold"])
    assert 0 < sum(sample["decision"] for sample in answers[0]["predictions"]) < len(NEW)
    _, out, _ = call(capsys, "predict", str(folder), str(tmp_path / "new.npz"))
    assert {line.split("decision: ")[1] for line in out.splitlines()} == {"ill", "not ill"}


def test_a_test_on_the_same_data_finds_the_same_values(folder, numbers):
    built = scenario()
    tested = fl.evaluate(folder, (built.test_set.x.numpy(), built.test_set.y.numpy()))
    assert {name: tested.metrics[name] for name in DECISION} == {name: numbers["metrics"][name] for name in DECISION}
    assert not any("prevalence" in name for name in tested.metrics)


@pytest.mark.skipif(importlib.util.find_spec("onnxscript") is None, reason="needs the extra onnx")
def test_onnx_carries_the_threshold(folder, numbers, tmp_path):
    import onnx

    read(folder).save(tmp_path / "model.onnx")
    entry = next(e for e in onnx.load(tmp_path / "model.onnx").metadata_props if e.key == "fedloom")
    assert json.loads(entry.value)["decision"] == numbers["decision"]


def test_the_best_round_has_its_own_threshold(tmp_path):
    result = trained(tmp_path / "run", select="best_val")
    thresholds = {row["round"]: row["value"] for row in result.rows if row["name"] == "decision_threshold"}
    best = result.numbers["decision"]["round"]
    assert result.numbers["decision"]["threshold"] == thresholds[best]
    assert read(tmp_path / "run", at="best_val").metadata.decision.threshold == thresholds[best]
    assert read(tmp_path / "run", at="last").metadata.decision.threshold == thresholds[3]


def test_a_resumed_run_has_the_same_threshold_and_intervals(tmp_path, numbers):
    keys = {"data": scenario(), "intervals": {"draws": 100}}
    with pytest.raises(ConnectionError):
        trained(tmp_path / "run", callbacks=[Stop(2)], **keys)
    settings = {"rounds": 3, "model": "logistic", "engine": "serial"}
    evaluation = {"decision": RULE, "intervals": {"draws": 100}}
    resumed = fl.run(
        "fedavg", scenario=scenario(), out=tmp_path / "run", existing="resume", evaluation=evaluation, **settings
    )
    for key in ("decision", "intervals", "metrics"):
        assert resumed.numbers[key] == numbers[key]


def test_a_decision_and_intervals_change_no_other_number(numbers):
    plain = fl.run("fedavg", scenario=scenario(), rounds=3, model="logistic", engine="serial")
    for key in ("accuracy", "test_loss", "details"):
        other = numbers[key]
        assert plain.numbers[key] == ({k: other[k] for k in plain.numbers[key]} if key == "details" else other)


def test_intervals_say_what_was_drawn(numbers):
    found = numbers["intervals"]
    assert (found["by"], found["level"], found["draws"], found["method"]) == ("row", 0.95, 100, "quantiles")
    assert found["values"].keys() >= {"accuracy", "balanced_accuracy", *DECISION}
    for name in ("accuracy", "balanced_accuracy", *DECISION):
        interval = found["values"][name]
        assert interval["value"] == pytest.approx(numbers["metrics"].get(name, numbers["accuracy"]))
        assert interval["low"] <= interval["value"] <= interval["high"]
    decision, intervals = risk_sentences(numbers)
    assert decision.startswith("Samples are taken for ill from log odds")
    assert "Too narrow where several rows belong to one person." in intervals
    assert "the data have no groups, so single rows are drawn" in " ".join(numbers["degenerate"])


def test_persons_are_drawn_whole():
    y = np.arange(300) // 5 % 2
    x = (np.random.default_rng(0).normal(size=(300, 4)) + y[:, None]).astype(np.float32)
    persons = from_arrays(x, y, classes=["healthy", "ill"], owners=np.arange(300) // 100, groups=np.arange(300) // 5)
    numbers = trained(data=fl.scenario(persons, val=0.2), intervals={"draws": 100}).numbers
    found = numbers["intervals"]
    assert not any("single rows" in text for text in numbers["degenerate"])
    assert (found["by"], found["groups"]) == ("group", 12)
    assert found["method"] == "t with 11 degrees of freedom"


def test_tables_and_the_terminal_say_both(folder, capsys, tmp_path):
    for words in (["table", str(folder)], ["report", str(folder), "--out", str(tmp_path / "report.html")]):
        _, out, notes = call(capsys, *words)
        page = out + notes if words[0] == "table" else (tmp_path / "report.html").read_text()
        assert "Samples are taken for ill from log odds" in page
        assert "95 % intervals of the test after the last round" in page
        assert "decision" in page


def test_nodes_send_bins_from_which_a_threshold_is_chosen(tmp_path):
    evaluation = {"protocol": "global/local", "decision": RULE, "intervals": {"draws": 100}}
    values = patients_of_nodes(tmp_path, evaluation=evaluation)[1].resolved()
    config = parse({**values, "scenario": {**values["scenario"], "val": 0.2}})
    numbers = run_in_process(config, data=tmp_path).numbers
    data = joined(config, tmp_path)
    val, decision = data.train_set.y[data.val.order], numbers["decision"]
    assert (decision["positives"], decision["negatives"]) == (int((val == 0).sum()), int((val == 1).sum()))
    assert all(0 < numbers["metrics"][name] <= 1 for name in DECISION)
    assert max(numbers["details"]["auroc"]["bound"]) < 0.001  # of bins that a second test has cut
    found, rows = numbers["intervals"], len(data.test.order)
    accuracy = found["values"]["accuracy_pooled"]["value"]
    assert (found["by"], found["groups"], round(accuracy * rows, 9) % 1) == ("row", rows, 0)
    half = 1.959964 * np.sqrt(accuracy * (1 - accuracy) / (rows - 1))
    assert found["values"]["accuracy_pooled"]["high"] == pytest.approx(accuracy + half, abs=1e-6)
    assert all(found["values"][name]["low"] < found["values"][name]["high"] for name in (*DECISION, "auroc_pooled"))
    assert "auroc_pooled" in risk_sentences(numbers)[1]


@pytest.mark.parametrize(
    ("data", "decision", "why"),
    [
        ({"val": 0.0}, RULE, r"0 of 0 validation samples are of class ill; .* raise scenario.val"),
        ({"ill": 0.0}, RULE, r"0 of \d+ validation samples are of class ill; a threshold needs samples of both kinds"),
        ({}, {**RULE, "class": "il"}, r"evaluation.decision.class = 'il': did you mean 'ill'"),
    ],
)
def test_no_threshold_can_be_chosen(data, decision, why):
    with pytest.raises(ConfigError, match=why):
        trained(data=scenario(**data), decision=decision)


def test_a_method_without_a_global_model_has_no_threshold():
    with pytest.raises(ConfigError, match=r"local has no global model"):
        trained(method="local")


def test_a_report_of_two_classes_draws_the_curves_and_the_chosen_point(folder, capsys, tmp_path):
    for words, charts in ((str(folder), 3), (None, 0)):
        path = words or str(tmp_path / "run")
        if words is None:
            three = fl.scenario("digits", partition="iid", clients=3)
            fl.run("fedavg", scenario=three, model="logistic", rounds=1, out=path, evaluation={"metrics": ["auroc"]})
        call(capsys, "report", path, "--out", str(tmp_path / "report.html"))
        page = (tmp_path / "report.html").read_text()
        titles = ("ROC curve", "Precision and recall", "Decision curve")
        assert sum(f"<h3>{title}</h3>" in page for title in titles) == charts
        assert page.count("Dot: the threshold that validation data chose.") == 2 * charts


def test_a_finished_run_is_tested_again_at_the_same_threshold(folder, numbers):
    again = Result.read(folder).evaluate(protocols=["global/global"], data=scenario())
    assert again.numbers["decision"] == numbers["decision"]
    assert again.numbers["intervals"] == numbers["intervals"]
    assert {name: again.numbers["metrics"][name] for name in DECISION} == {
        name: numbers["metrics"][name] for name in DECISION
    }
