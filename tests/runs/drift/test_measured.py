"""Drift in whole runs: off, on, resumed, and on every engine."""

import json

import pytest

import fedloom as fl
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.runs.config.run_config import parse
from fedloom.runs.drift.decomposition import RunDrift
from fedloom.runs.run import run
from fedloom.runs.storage.log import DriftLog
from support import configured, same_bits, world

KEYS = {
    "method": "fedskc",
    "scenario": {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4, "seed": 1},
    "model": {"name": "mlp", "hidden": [8]},
    "rounds": 2,
    "participation": 0.75,
    "local_epochs": 1,
    "engine": "serial",
}


def config(**keys):
    return parse({**KEYS, **keys})


def rows_without_seconds(result):
    return [row for row in result.rows if not row["name"].startswith("seconds_")]


def server_of(result):
    weights = result.memory.weights
    return weights[max(weights)].server


@pytest.fixture(scope="module")
def with_drift():
    return run(config(drift={"decompose_every": 1}))


def test_a_run_with_drift_is_the_same_run(with_drift):
    without = run(config())
    assert rows_without_seconds(without) == rows_without_seconds(with_drift)
    assert same_bits(server_of(without), server_of(with_drift))
    with pytest.raises(ConfigError, match="drift=true"):
        without.drift()


def test_runs_without_drift_keep_their_fingerprint():
    assert "drift" not in config().resolved()
    assert config(drift=False).fingerprint() == config(drift=None).fingerprint() == config().fingerprint()
    assert config(drift=True).drift == config(drift={"decompose_every": 0}).drift
    assert config(drift=True).fingerprint() != config().fingerprint()


def test_rows_make_a_frame(with_drift):
    rows = with_drift.drift()
    assert {tuple(row) for row in rows} == {("round", "name", "client", "other", "value")}
    assert {row["round"] for row in rows} == {1, 2}
    names = {row["name"] for row in rows}
    assert {"diversity", "cosine", "local_share"} <= names
    shares = [row["value"] for row in rows if row["round"] == 2 and row["name"].endswith("_share")]
    assert sum(shares) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_engines_measure_the_same(engine, with_drift):
    key = {"name": engine, "workers": 2} if engine == "processes" else engine
    assert run(config(drift={"decompose_every": 1}, engine=key)).drift_rounds == with_drift.drift_rounds


def test_a_resumed_run_has_each_round_once(tmp_path, with_drift):
    class Stop(fl.Callback):
        def on_round(self, config, round_, rows):
            raise KeyboardInterrupt

    settings = config(drift={"decompose_every": 1}, checkpoint={"seconds": 0.0})
    with pytest.raises(KeyboardInterrupt):
        run(settings, out=tmp_path / "run", callbacks=[Stop()])
    with (tmp_path / "run" / "drift.jsonl").open("a") as stream:  # a round after the checkpoint, and a cut line
        stream.write(json.dumps({"round": 2, "values": [], "notes": []}) + "\n" + '{"round": 3')
    resumed = run(settings, out=tmp_path / "run", existing="resume")
    assert [drift.round for drift in resumed.drift_rounds] == [1, 2]
    assert resumed.drift_rounds == with_drift.drift_rounds
    read = fl.read(tmp_path / "run")
    assert read.measured_drift() == DriftLog(tmp_path / "run").rounds() == with_drift.drift_rounds


def test_a_damaged_file_is_named(tmp_path):
    for text in ('{"round": 1}\n', "[]\n", '{"round": 1, "values": [["x", "y", null, null]], "notes": []}\n'):
        (tmp_path / "drift.jsonl").write_text(text)
        with pytest.raises(RunFolderError, match=r"drift.jsonl: line 1 is damaged"):
            DriftLog(tmp_path).rounds()


def test_clients_on_nodes_cannot_be_trained_here():
    def elsewhere(*arguments):
        raise AssertionError

    with pytest.raises(ConfigError, match="their data are on nodes"):
        run(config(drift={"decompose_every": 1}), engine_factory=elsewhere)


def test_a_method_without_weights_says_what_is_missing():
    result = run(
        config(method="fedproto", drift={"decompose_every": 1}, rounds=1, evaluation={"protocol": "personal/local"})
    )
    [drift] = result.drift_rounds
    assert drift.notes == [
        "fedproto uploads no weights that can be compared (prototypes, class_counts): no figures of updates",
        "fedproto has no global model: no decomposition",
    ]
    assert drift.values == []


def test_a_round_without_data_has_a_note():
    federation = world(configured("fedavg"), [[0], [1]]).federation
    drift = RunDrift(config(drift=True), federation, federation.engine.worker, None, elsewhere=False)
    assert [row["name"] for row in drift.store(1)] == ["seconds_drift"]
    assert drift.rounds[0].notes == ("no participant has data: nothing is measured",)


def test_files_with_classes_and_entries_are_read(tmp_path):
    values = [["head_turn", 0.5, None, None, 3, "head.weight"], ["cosine", 0.25, 0, 1, None, None]]
    (tmp_path / "drift.jsonl").write_text(json.dumps({"round": 1, "values": values, "notes": []}) + "\n")
    (round_,) = DriftLog(tmp_path).rounds()
    assert round_.values == [("head_turn", 0.5, None, None), ("cosine", 0.25, 0, 1)]
