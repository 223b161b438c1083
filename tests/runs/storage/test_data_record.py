"""Data that change under their name: refused on resume, and wherever runs come together."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import fedloom as fl
from fedloom.core.errors import RunFolderError
from fedloom.results.comparison import Comparison
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.studies.outcome import collect, reuse
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.run_study import run_study
from fedloom.runs.studies.study_folder import StudyFolder
from support import Stop


def _write(path: Path, seed: int) -> None:
    """A table of two classes; the same size for every seed."""
    rng = np.random.default_rng(seed)
    rows = [f"{value:+.4f},{'ab'[k % 2]}" for k, value in enumerate(rng.uniform(-1, 1, 80))]
    path.write_text("\n".join(["x,y", *rows]))


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _write(tmp_path / "d.csv", 0)
    return tmp_path / "d.csv"


def _values(**keys):
    scenario = {"source": "csv", "path": "d.csv", "label": "y", "partition": "iid", "clients": 2}
    return {"scenario": scenario, "model": "mlp", "rounds": 2, "local_epochs": 1, "engine": "serial"} | keys


def _begun(out: Path) -> None:
    with pytest.raises(ConnectionError):
        run(parse(_values(checkpoint={"seconds": 0})), out=out, callbacks=[Stop(1)])


def test_resume_refuses_changed_data_and_names_file_and_folder(data):
    _begun(Path("r"))
    _write(data, 1)
    with pytest.raises(RunFolderError, match=r"^d\.csv: not the data that the run in r was dealt"):
        run(parse(_values()), out=Path("r"), existing="resume")
    _write(data, 0)
    assert run(parse(_values()), out=Path("r"), existing="resume").numbers["rounds"] == 2


def test_resume_takes_a_folder_of_a_version_without_digests(data):
    _begun(Path("r"))
    described = json.loads(Path("r/scenario.json").read_text())
    del described["data"], described["checksums"]
    Path("r/scenario.json").write_text(json.dumps(described))
    _write(data, 1)
    assert run(parse(_values()), out=Path("r"), existing="resume").numbers["rounds"] == 2


def test_fresh_and_a_finished_run_take_what_is_there(data):
    first = run(parse(_values()), out=Path("r"))
    _write(data, 1)
    assert run(parse(_values()), out=Path("r")).numbers == first.numbers  # no data are read
    assert run(parse(_values()), out=Path("r"), existing="fresh").numbers != first.numbers


def _compare(**keys):
    scenario = fl.scenario("csv", path="d.csv", label="y", partition="iid", clients=2)
    fixed = {"model": "mlp", "rounds": 1, "local_epochs": 1, "engine": "serial", "out": "c"}
    return fl.compare(**{"scenario": scenario, "seeds": 1, **fixed, **keys})


@pytest.mark.parametrize("grown", [{"methods": ["fedavg", "fedprox"]}, {"methods": "fedavg", "seeds": 2}])
def test_a_comparison_does_not_grow_on_other_data(data, grown):
    _compare(methods="fedavg")
    _write(data, 1)
    with pytest.raises(RunFolderError, match=r"d\.csv: not the data that the run in c/fedavg"):
        _compare(**grown)


def test_another_key_of_the_source_is_another_source(data):
    _compare(methods="fedavg")
    _write(data.with_name("other.csv"), 1)
    other = fl.scenario("csv", path="other.csv", label="y", partition="iid", clients=2)
    assert len(_compare(methods="fedavg", scenario=other)) == 1


def test_a_table_refuses_runs_on_different_data_unless_they_are_joined_by_intention(data):
    run(parse(_values(rounds=1)), out=Path("one"))
    _write(data, 1)
    run(parse(_values(rounds=1, seed=1)), out=Path("two"))
    with pytest.raises(RunFolderError, match=r"d\.csv: one and two had different data under this name"):
        collect([Path("one"), Path("two")])
    assert len(Comparison(collect([Path("one"), Path("two")], allow_mixed=True).results)) == 2


def test_a_study_stops_at_the_first_cell_on_other_data(data):
    study = parse_study(_values(rounds=1, methods=["fedavg", "fedprox"], seeds=1))
    run_study(study, StudyFolder(Path("s")), study.chosen(["fedavg"]))
    _write(data, 1)
    with pytest.raises(RunFolderError, match=r"d\.csv: not the data that the run in s/fedavg"):
        run_study(study, StudyFolder(Path("s")), study.cells)
    assert not list(Path("s").glob("*.error.txt"))


def test_cells_of_another_study_on_other_data_are_not_reused(data):
    study = parse_study(_values(rounds=1, methods=["fedavg", "fedprox"], seeds=1))
    run_study(study, StudyFolder(Path("s")), study.chosen(["fedavg"]))
    _write(data, 1)
    run_study(study, StudyFolder(Path("t")), study.chosen(["fedprox"]))
    with pytest.raises(RunFolderError, match=r"d\.csv: s/fedavg\S* and t/fedprox\S* had different data"):
        reuse(StudyFolder(Path("s")), study.cells, Path("t"))
    assert len(list(Path("s").glob("*/summary.json"))) == 1


def test_a_model_that_needs_data_refuses_other_ones(data):
    keys = {"method": "fedbabu", "evaluation": {"protocol": "personal/local"}, "rounds": 1}
    run(parse(_values(**keys)), out=Path("r"))
    fl.load("r", client=0)
    _write(data, 1)
    with pytest.raises(RunFolderError, match="not the data that the run in r was dealt"):
        fl.load("r", client=0)


def test_the_record_holds_no_more_than_digests_and_keys(data):
    run(parse(_values(rounds=1)), out=Path("r"))
    record = json.loads(Path("r/scenario.json").read_text())["data"]
    assert record["files"] == ["d.csv"]
    assert record["source"]["path"] == "d.csv"
    assert all(len(record[key]) == 16 for key in ("source_digest", "dealt_digest", "scenario"))
    assert yaml.safe_load(Path("r/config.yaml").read_text())["scenario"]["path"] == "d.csv"
