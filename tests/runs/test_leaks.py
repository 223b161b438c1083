"""What a run says where rows of one person may stand in training and test data, and where a metric is undefined."""

import numpy as np
import pytest

import fedloom as fl
from command_line import call
from fedloom.data import from_arrays
from fedloom.results.report.page import page
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from flower_world import Notes

IDS = np.repeat(np.arange(60), 5)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 8))[IDS] + 0.05 * RNG.normal(size=(300, 8))
Y = np.tile([0, 1], 30)[IDS]


def persons(**keys):
    return from_arrays(X, Y, **keys)


def test_near_duplicates_are_in_the_result_and_at_the_head_of_the_report():
    result = fl.run(method="fedavg", scenario=fl.scenario(persons(), clients=3), rounds=1)
    sentence = "60 of 60 test samples nearly equal a training sample"
    assert [note for note in result.numbers["degenerate"] if note.startswith(sentence)]
    assert result.scenario["leak"]["near"] == 60
    assert sentence in page([result]).partition("Results")[0]


@pytest.mark.parametrize("keys", [{"groups": IDS}, {}])
def test_a_key_silences_the_alarm(keys):
    scenario = fl.scenario(persons(**keys), clients=3, **({} if keys else {"group": "none"}))
    result = fl.run(method="fedavg", scenario=scenario, rounds=1)
    assert not [note for note in result.numbers["degenerate"] if "training" in note]


def test_a_run_says_on_how_many_clients_a_rank_metric_is_defined():
    notes = Notes()
    evaluation = {"protocol": "global/local", "metrics": ["auroc"]}
    scenario = {"source": "digits", "partition": "classes", "classes_per_client": 1, "clients": 10}
    run(parse({"method": "fedavg", "rounds": 1, "scenario": scenario, "evaluation": evaluation}), callbacks=[notes])
    pooled = "in global/local its value is therefore that of all test samples together"
    assert f"`auroc` is defined on 0 of 10 clients; {pooled}" in notes.texts


def test_inspect_says_what_is_shared_and_where_a_metric_is_undefined(tmp_path, capsys):
    arrays = {"x": X, "y": Y, "group": IDS}
    parts = {"train": slice(200), "test": slice(200, None)}
    named = {f"{key}_{part}": values[rows] for key, values in arrays.items() for part, rows in parts.items()}
    np.savez(tmp_path / "set.npz", **named)
    scenario = f"{{source: npz, path: {tmp_path}/set.npz, partition: classes, classes_per_client: 1, clients: 4}}"
    evaluation = "{protocol: global/local, metrics: [auroc]}"
    (tmp_path / "run.yaml").write_text(f"method: fedavg\nscenario: {scenario}\nevaluation: {evaluation}\n")
    _, text, _ = call(capsys, "inspect", str(tmp_path / "run.yaml"))
    assert "20 test groups, 0 of them in training" in text
    assert "`auroc` is defined on 0 of 4 clients" in text
