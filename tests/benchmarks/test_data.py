"""Committed measurements come back from their files exactly as they were kept."""

import math
from dataclasses import replace

import pytest

import fedloom as fl
from benchmarks import cells, data, keep
from benchmarks.tables import reproduction
from fedloom.core.errors import ConfigError
from fedloom.papers.measurements import measure, measurements_csv, read_measurements
from fedloom.papers.recipe import find_recipe

ROWS = [
    {"method": "fedavg", "attack": None, "accuracy": 97.18, "from": ["counts"], "wrapper": ""},
    {"method": "1e38", "attack": "dp, z = 1", "accuracy": 1 / 3, "refused": 0, "options": {"tau": 0.01}},
    {"method": '"quoted"', "attack": "two\nlines", "accuracy": math.inf},
]
PLAIN = {
    "method": "fedavg",
    "preset": "sound",
    "protocol": "global/global",
    "seeds": [0, 2],
    "accuracies": [0.1, 1 / 3],
    "validations": [0.5, None],
    "worst": None,
    "tuned": {"optimizer": {"name": "adam", "lr": 0.001}},
    "bytes_up": 12.0,
    "warnings": ["diverged: in round 2"],
    "environment": {"versions": {"python": "3.11"}, "cores": 2},
}
TESTED = PLAIN | {
    "tested": {
        "personal/local": {"accuracy": [0.25, 0.5], "nll": [None, 2.0]},
        "global/global": {"accuracy": [0.1, 0.2]},
    },
    "clients": {"personal/local": [[0.0, 0.5], [1.0, None]]},
    "newcomers": {"zero-shot": {"accuracy": [0.3, 0.4]}},
}


def test_rows_come_back_and_equal_rows_make_equal_files(tmp_path):
    first, second = tmp_path / "first.csv.gz", tmp_path / "second.csv.gz"
    data.write_rows(first, ROWS)
    assert data.read_rows(first) == ROWS
    data.write_rows(second, data.read_rows(first))
    assert first.read_bytes() == second.read_bytes()


def test_cells_of_a_study_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "FOLDER", tmp_path)
    study = {"mild/fedavg": PLAIN, "/fedavg": TESTED}
    cells.write_cells("study", study)
    assert cells.read_cells("study") == study
    assert cells.studies_by_name() == {"study": study}


def test_committed_files_have_rows_and_no_time_of_their_making():
    for path in data.RESULTS.rglob("*.csv.gz"):
        if path.parent.name != "reproduction":
            before, rows = path.read_bytes(), data.read_rows(path)
            assert rows, path
            assert before[4:8] == bytes(4), f"{path.name} has a time in it"


def test_a_finished_study_is_kept_beside_earlier_methods(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "FOLDER", tmp_path / "results")
    (tmp_path / "results").mkdir()
    scenario = {"source": "digits", "partition": "iid", "clients": 2, "val": 0.1}
    keys = {"model": "logistic", "rounds": 1, "local_epochs": 1, "seeds": [0, 1]}
    fl.Study(["fedavg", "fedprox"], out=tmp_path / "tiny", scenario=scenario, **keys).run(progress=False)
    cells.write_cells("tiny", {"/fedavg": PLAIN, "/gone": PLAIN})
    monkeypatch.setattr(keep.advice, "write_forecast", lambda: None)
    keep.main([str(tmp_path / "tiny")])
    kept = cells.read_cells("tiny")
    assert list(kept) == ["/fedavg", "/fedprox"]
    assert kept["/fedavg"]["seeds"] == [0, 1]
    assert kept["/fedprox"]["environment"]["cores"] >= 1


def test_values_of_a_reproduction_join_earlier_ones_and_cifar_is_not_the_papers_own(tmp_path, monkeypatch, make_result):
    monkeypatch.setattr(keep, "FOLDER", tmp_path)
    monkeypatch.setattr(keep.advice, "write_forecast", lambda: None)
    recipe = find_recipe("feddw/table1")
    for column, accuracy in (("mnist-practical", 0.99), ("cifar10-practical", 0.6)):
        study = tmp_path / column
        study.mkdir()
        done = {(column, "FedAvg"): [make_result("fedavg", 0, [accuracy])]}
        (study / "reproduced.csv").write_text(measurements_csv(measure(recipe, done)))
        keep.main([f"feddw-table1={study}"])
    values = {value.column: value for value in read_measurements(tmp_path / "feddw-table1.csv.gz")}
    assert values["mnist-practical"].comparable
    assert not values["cifar10-practical"].comparable


def test_a_figure_of_other_columns_is_refused(tmp_path):
    path = tmp_path / "figure.csv"
    path.write_text("panel,row\nCIFAR-10,FedSSA\n")
    with pytest.raises(ValueError, match=r"figure\.csv: columns .*need panel, row, seed"):
        reproduction.read_figure(path, "costs")


def test_values_of_another_version_are_not_joined_unawares(make_result):
    done = {("mnist-practical", "FedAvg"): [make_result("fedavg", seed, [0.99]) for seed in range(2)]}
    first, second = measure(find_recipe("feddw/table1"), done)
    now = [replace(second, machine="AMD EPYC, 2 cores, Python 3.11.7, torch 2.13.0+cpu, fedloom 0.1.0")]
    before = [replace(first, machine="AMD EPYC, 2 cores, Python 3.11.7, torch 2.13.0+cpu, fedloom 0.0.1")]
    with pytest.raises(
        ConfigError, match=r"versions of fedloom: 1 run of 0\.0\.1 and 1 run of 0\.1\.0; mnist-practical/Fe"
    ):
        keep.merge(before, now)
    assert len(keep.merge(before, now, allow_mixed=True)) == 2
    assert keep.merge(before, [replace(now[0], seed=0)]) == [replace(now[0], seed=0)]  # measured again
    assert len(keep.merge([first], now)) == 2  # of a machine that is not known
