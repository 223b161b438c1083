"""The diagnosis of configs, scenarios and runs, in Python and by the command."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedloom as fl
from command_line import call
from fedloom.core.errors import ConfigError
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.data.scenario import Scenario
from fedloom.data.views import Views
from fedloom.diagnosis.diagnosis import diagnose_config, diagnose_scenario
from fedloom.diagnosis.feature_profile import profile_of_scenario
from fedloom.nets.net import build, tree_of
from fedloom.runs.config.run_config import load, parse

IID = ("scenario.source=digits", "scenario.partition=iid", "scenario.clients=3")
KEYS = (*IID, "model={name: mlp, hidden: [8]}", "rounds=1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    scenario = fl.scenario("digits", partition="iid", clients=3)
    fl.run("fedavg", scenario=scenario, rounds=1, model={"name": "mlp", "hidden": [8]}, out=str(folder))
    return folder


def test_iid_and_split_classes_are_told_apart() -> None:
    iid = fl.diagnose(fl.scenario("digits", partition="iid", clients=5))
    assert iid.labels.distances["hellinger"].looks_iid
    split = fl.diagnose(fl.scenario("digits", partition="classes", classes_per_client=2, clients=5))
    assert not split.labels.distances["hellinger"].looks_iid
    assert "extreme" in split.sentences()[0]
    assert split.untrained is None
    json.dumps(split.facts(), allow_nan=False)


def test_a_config_brings_its_untrained_model() -> None:
    diagnosis = diagnose_config(parse(load(None, KEYS)))
    assert diagnosis.untrained is not None
    assert diagnosis.trained is None
    assert any("untrained" in row[0] for row in diagnosis.rows())


def test_a_model_without_features_is_named_and_labels_are_compared() -> None:
    diagnosis = diagnose_config(parse(load(None, [*KEYS, "method=fedco2"])))
    assert diagnosis.untrained is None
    assert "several nets" in diagnosis.notes[0]
    assert diagnosis.labels.clients == (0, 1, 2)


def test_a_net_that_diverged_is_said_to_have_no_features() -> None:
    scenario = fl.scenario("digits", partition="iid", clients=2).build(run_seed=0)
    net = build("mlp", input_shape=scenario.train_set.input_shape, num_classes=10, streams=Streams(0), hidden=(3,))
    with torch.no_grad():
        next(iter(net.parameters())).fill_(torch.nan)
    diagnosis = diagnose_scenario(scenario, trained=net)
    assert diagnosis.trained is None
    assert any("no features of the trained net: those of " in note and "not finite" in note for note in diagnosis.notes)


def test_a_finished_run_adds_the_trained_model(finished: Path) -> None:
    result = fl.read(finished)
    diagnosis = fl.diagnose(result)
    assert diagnosis.trained is not None
    assert diagnosis.untrained is not None
    assert diagnosis.trained.class_distance.value != diagnosis.untrained.class_distance.value


def test_the_command_diagnoses_configs_and_runs(finished: Path, capsys: Any) -> None:
    code, out, _ = call(capsys, "diagnose", "demo", *KEYS)
    assert code == 0
    assert "label skew: Hellinger" in out
    code, out, err = call(capsys, "diagnose", str(finished), "--json")
    assert code == 0
    assert json.loads(out)["features"].keys() == {"untrained", "trained"}
    assert "diagnosis.json" in err
    kept = json.loads((finished / "diagnosis.json").read_text(encoding="utf-8"))
    assert json.loads(out)["drift"] is None
    assert kept == {key: value for key, value in json.loads(out).items() if key != "drift"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((".",), "this folder is no run"),
        (("nowhere.yaml",), "nowhere.yaml"),
        (("RUN", "rounds=3"), "the config of a finished run is fixed"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused(
    words: tuple[str, ...], message: str, finished: Path, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, "diagnose", *(str(finished) if word == "RUN" else word for word in words))
    assert code == 2
    assert message in err


def test_one_class_and_one_client_have_answers() -> None:
    one = fl.diagnose(fl.scenario("digits", partition="iid", clients=1))
    assert one.sentences() == ["one client has samples, so nothing differs between clients"]
    data = Dataset(torch.arange(24.0).reshape(12, 2), torch.zeros(12, dtype=torch.int64), ("only",))
    net = build("mlp", input_shape=(2,), num_classes=1, streams=Streams(0), hidden=(3,))
    for parts in ([np.arange(12)], [np.arange(6), np.arange(6, 12)]):
        views = Views.from_lists(parts)
        diagnosis = diagnose_scenario(Scenario("made", data, data, views, views, views), net)
        assert diagnosis.labels.distances["hellinger"].value == 0
        json.dumps(diagnosis.facts(), allow_nan=False)


def test_more_noise_of_known_sigma_is_farther() -> None:
    """Client 1 has noise on its images, of 0, 25 and 75 grey levels."""
    keys = {"source": "digits", "partition": "iid", "clients": 2}
    net, values = None, []
    for sigma in (0, 25, 75):
        scenario = fl.scenario(**keys, skews=[{"name": "noise", "sigma": sigma}]).build(run_seed=0)
        shape = scenario.train_set.input_shape
        net = net or build("mlp", input_shape=shape, num_classes=10, streams=Streams(0), hidden=(16,))
        values.append(profile_of_scenario(scenario, net, tree_of(net)).class_distance)
    assert values[0].looks_iid
    assert not values[2].looks_iid
    assert values[0].value < values[1].value < values[2].value


def test_data_on_nodes_are_refused() -> None:
    scenario = fl.scenario("digits", partition="iid", clients=2).build(run_seed=0)
    with pytest.raises(ConfigError, match="lie on nodes"):
        fl.diagnose(replace(scenario, remote=True))
