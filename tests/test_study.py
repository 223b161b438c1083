"""A study from Python: planned, run, resumed and read in the folder that the command line uses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from torch import nn

import fedloom as fl
from command_line import call

SCENARIO = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=3)
QUICK: dict[str, Any] = {"scenario": SCENARIO, "rounds": 1, "local_epochs": 1, "engine": "serial"}


def small(out: Path, **keys: Any) -> fl.Study:
    return fl.Study(["fedavg", "fedprox"], seeds=1, out=out, **(QUICK | keys))


def test_a_study_is_planned_without_writing_and_run_in_parts(tmp_path: Path) -> None:
    study = small(tmp_path / "s", settings={"mild": {}, "hard": {"scenario": {"alpha": 0.1}}})
    assert study.cells == [f"{name}/{method}/seed0" for name in ("mild", "hard") for method in ("fedavg", "fedprox")]
    plan = study.plan()
    assert [row["state"] for row in plan] == ["left"] * 4
    assert plan.notes[0] == "4 cells in 4 runs: 4 left"
    assert not (tmp_path / "s").exists()
    assert len(repr(study).splitlines()) == 1
    hard = study.run("hard/*", progress=False)
    assert [row["label"] for row in hard.rows()] == ["fedavg", "fedprox"]
    assert [row["state"] for row in study.plan()] == ["left", "left", "done", "done"]
    assert len(study.results()) == 2
    assert study.failed == {}


def test_the_folder_is_that_of_the_command_line_and_resumes(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "s"
    small(out).run("fedavg", progress=False)
    written = {path.name: path.stat().st_mtime_ns for path in out.glob("fedavg*/summary.json")}
    stored = yaml.safe_load((out / "study.yaml").read_text())
    assert stored["methods"] == {"fedavg": {}, "fedprox": {}}
    again = fl.Study.read(out).run(progress=False)
    assert [row["label"] for row in again.rows()] == ["fedavg", "fedprox"]
    assert {path.name: path.stat().st_mtime_ns for path in out.glob("fedavg*/summary.json")} == written
    (tmp_path / "same.yaml").write_text(yaml.safe_dump(stored))
    code, printed, _ = call(capsys, "study", str(tmp_path / "same.yaml"), "--out", str(out), "--plan")
    assert (code, printed.count("done")) == (0, 3)


def test_a_cell_that_fails_is_told_and_the_others_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study = fl.Study({"fedavg": None, "wild": {"method": "local"}}, seeds=1, out=tmp_path / "s", **QUICK)
    done = study.run(progress=False)  # local has no global model
    assert [result.numbers["method"] for result in done] == ["fedavg"]
    assert list(study.failed) == ["wild/seed0"]
    assert "1 cells done, 1 failed" in caplog.text


def test_settings_may_be_scenarios_names_and_numbers_of_numpy(tmp_path: Path) -> None:
    study = fl.Study(
        "fedavg",
        settings={"first": SCENARIO, "second": "digits", "third": {"scenario": "digits", "rounds": np.int64(2)}},
        seeds=1,
        out=tmp_path,
        rounds=1,
        tune={"optimizer.lr": (0.01, 0.1)},
    )
    assert study.cells == ["first/fedavg/seed0", "second/fedavg/seed0", "third/fedavg/seed0"]
    assert len(study.plan()) == 3 + 6  # two trials for each


def test_tuned_values_are_tried_before_the_cells(tmp_path: Path) -> None:
    done = small(tmp_path, tune={"optimizer.lr": [0.01, 0.1]}).run(progress=False)
    assert [row["tuned"] for row in done.rows()] == [["optimizer.lr"]] * 2
    assert done.tuned()


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"methods": []}, "methods = .*: need one"),
        ({"methods": ["fedsk"]}, "did you mean 'fedskc'"),
        ({"roundz": 3}, "did you mean 'rounds'"),
        ({"scenario": None}, "scenario is missing"),
        ({"scenario": SCENARIO.build(0)}, "scenario is a Scenario: a study is kept as a file"),
        ({"model": nn.Linear(2, 2)}, "model is a Linear: a study is kept as a file"),
        ({"settings": {"a": {"model": nn.Linear(2, 2)}}}, r"settings.a.model is a Linear"),
        ({"settings": {"a": 3}}, "settings"),
        ({"seeds": 0}, "seeds = 0"),
        ({"tries": 3}, "tries"),
        ({"tune": {"lr": [0.1]}}, "unknown key 'lr'"),
        ({"out": None}, "None is of type NoneType; need a path"),
        ({"methods": 3}, "methods = 3"),
        ({"settings": "mild"}, "settings = 'mild'"),
        ({"callbacks": [fl.Callback()]}, "callbacks is a Callback"),
        ({"config": "nowhere"}, "nowhere"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_study_that_cannot_be_is_refused_in_one_line_and_writes_nothing(tmp_path: Path, keys: Any, why: str) -> None:
    with pytest.raises(fl.FedloomError, match=why) as caught:
        fl.Study(**({"methods": ["fedavg"], "out": tmp_path / "s"} | QUICK | keys))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "s").exists()


def test_wrong_calls_of_a_study_are_one_line(tmp_path: Path) -> None:
    study = small(tmp_path / "s")
    for wrong_call, why in [
        (lambda: study.plan("fedx/*"), "fits no cell"),
        (lambda: study.plan(3), "only = 3"),  # type: ignore[arg-type]
        (lambda: study.plan([3]), r"only = \[3\]"),  # type: ignore[list-item]
        (lambda: study.run(jobs=0), "jobs = 0"),
        (lambda: study.run(jobs="2"), "jobs = '2'"),  # type: ignore[arg-type]
        (lambda: study.run(progress="no"), "progress = 'no'"),  # type: ignore[arg-type]
        (lambda: fl.Study.read(tmp_path), "no study in it"),
        (lambda: fl.Study.read(tmp_path / "nowhere"), "no study in it"),
    ]:
        with pytest.raises(fl.FedloomError, match=why):
            wrong_call()
    small(tmp_path / "s").run("fedavg", progress=False)
    with pytest.raises(fl.FedloomError, match="holds another study"):
        small(tmp_path / "s", rounds=2).plan()
