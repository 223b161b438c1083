"""The command `study`: planned, run, reported; and what makes it fail."""

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from command_line import age, call
from fedloom._version import __version__
from fedloom.core.errors import ConfigError
from fedloom.results import report
from fedloom.runs.studies import run_study, runner
from pages import cells_of

STUDY = """
scenario: {source: digits, partition: dirichlet, clients: 2, val: 0.1}
model: {name: mlp, hidden: [8]}
rounds: 1
local_epochs: 1
engine: serial
settings: {mild: {scenario: {alpha: 1.0}}, hard: {scenario: {alpha: 0.2}}}
methods: [fedavg, fedprox]
seeds: 1
"""


@pytest.fixture(autouse=True)
def _study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(STUDY)


def test_a_plan_runs_nothing_then_a_part_then_the_rest(capsys: Any) -> None:
    code, out, _ = call(capsys, "study", "mine.yaml", "--plan")
    assert code == 0
    assert "4 cells in 4 runs: 4 left" in out
    assert not Path("runs").exists()
    code, out, _ = call(capsys, "study", "mine.yaml", "--out", "s", "--only", "hard/*", "--json")
    assert (code, list(json.loads(out)["done"])) == (0, ["hard/fedavg/seed0", "hard/fedprox/seed0"])
    assert call(capsys, "study", "mine.yaml", "--out", "s", "--plan", "--json")[1].count('"done"') == 3
    code, out, _ = call(capsys, "study", "mine.yaml", "--out", "s")
    assert code == 0
    assert "4 done, 0 failed, 0 left" in out
    page = Path("s/report.html").read_text()
    assert call(capsys, "study", "mine.yaml", "--out", "s", "--only", "hard/*")[0] == 0
    assert Path("s/report.html").read_text() == page  # of all that is done, whatever the last call ran
    assert call(capsys, "table", "s", "--format", "csv")[1].count("\n") == 1 + 4
    assert "seeds there" in call(capsys, "table", "s", "--target", "0.01")[1]


def test_a_plan_names_the_trials_of_tuning(capsys: Any) -> None:
    Path("tuned.yaml").write_text(STUDY + "tune: {fedprox.mu: [0.1, 1.0]}\n")
    code, out, _ = call(capsys, "study", "tuned.yaml", "--plan", "--out", "s")
    assert code == 0
    assert "     left  mild/fedprox/trial/fedprox.mu=0.1" in out.splitlines()
    assert "4 cells and 6 trials of tuning in 10 runs: 4 left" in out
    assert "on one core" not in out  # nothing has been measured yet
    plan = json.loads(call(capsys, "study", "tuned.yaml", "--plan", "--out", "s", "--json")[1])
    assert plan["seconds_left"] is None
    assert set(plan["trials"].values()) == {"left"}


def test_a_plan_leaves_an_empty_folder_empty(capsys: Any) -> None:
    Path("s").mkdir()
    assert call(capsys, "study", "mine.yaml", "--out", "s", "--plan")[0] == 0
    assert not list(Path("s").iterdir())
    assert call(capsys, "study", "mine.yaml", "--out", "s", "--only", "hard/fedavg")[0] == 0


def test_a_plan_forecasts_the_time_from_the_finished_runs(capsys: Any) -> None:
    assert call(capsys, "study", "mine.yaml", "--out", "s", "--only", "hard/fedavg")[0] == 0
    assert "on one core, judging by the finished runs" in call(capsys, "study", "mine.yaml", "--out", "s", "--plan")[1]
    plan = json.loads(call(capsys, "study", "mine.yaml", "--out", "s", "--plan", "--json")[1])
    numbers = json.loads(next(Path("s").glob("fedavg*/summary.json")).read_text())
    assert plan["seconds_left"] == pytest.approx(3 * numbers["seconds"]["total"])


def test_a_cell_that_fails_is_named_and_the_exit_code_says_so(capsys: Any) -> None:
    Path("mine.yaml").write_text(STUDY.replace("{alpha: 0.2}", "{source: npz, path: none.npz, alpha: 0.2}"))
    code, out, err = call(capsys, "study", "mine.yaml", "--out", "s", "--only", "fedavg")
    assert code == 1
    assert "1 done, 1 failed, 0 left" in out
    assert "failed: hard/fedavg/seed0: DataError: none.npz: no such file" in err
    assert len(list(Path("s").glob("*.error.txt"))) == 1


def test_cells_that_fail_alike_are_named_once(capsys: Any) -> None:
    text = "methods: [local]\nscenario: {source: digits, partition: iid, clients: 2}\nrounds: 1\nseeds: 3\n"
    Path("alike.yaml").write_text(text)
    code, _, err = call(capsys, "study", "alike.yaml", "--out", "s")
    assert code == 1
    failed = [line for line in err.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 1
    assert failed[0].startswith("failed: local/seed0 and 2 more: ConfigError: evaluation.protocol = 'global/global'")


def test_a_full_disk_is_one_line(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **how: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    words = ("study", "mine.yaml", "--out", "s", "--only", "hard/fedavg", "--quiet")
    for module, name in ((runner, "run"), (report, "write_report")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, full)
            code, out, err = call(capsys, *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith("error: s: no space left on the device; its runs have stopped")
    assert call(capsys, *words)[0] == 0


def test_a_finished_cell_that_is_damaged_has_failed_and_the_rest_is_reported(capsys: Any) -> None:
    words = ("study", "mine.yaml", "--out", "s", "--only", "hard/*")
    assert call(capsys, *words)[0] == 0
    (damaged,) = Path("s").glob("fedprox-*")
    with (damaged / "metrics.jsonl").open("a") as stream:
        stream.write("x")
    code, out, err = call(capsys, *words)
    assert code == 1
    assert "1 done, 1 failed, 0 left" in out
    assert f"failed: hard/fedprox/seed0: {damaged}/metrics.jsonl: damaged (rows were lost" in err
    assert f"the run folder is {damaged}" in err
    assert "--fresh" not in err
    assert "2 cells in 2 runs: 1 done, 1 failed" in call(capsys, *words, "--plan")[1]
    rows = {row[0]: row[1:4] for row in cells_of(Path("s/report.html").read_text(), "Cells of the study")}
    assert rows["hard/fedprox"] == ["–", "0", "–"]
    shutil.rmtree(damaged)
    assert call(capsys, *words)[0] == 0


def test_cells_of_another_version_are_joined_by_consent_alone(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("study", "mine.yaml", "--out", "s")
    assert call(capsys, *words, "--only", "hard/*")[0] == 0
    (other,) = Path("s").glob("fedavg-*")
    age(other)
    for only in ("hard/*", "mild/fedavg"):  # finished ones; one that is left
        before = sorted(Path("s").rglob("*"))
        code, out, err = call(capsys, *words, "--only", only)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert f"1 run of 0.0.1 and 1 run of {__version__}; {other} is of 0.0.1, this is {__version__}: keep" in err
        assert sorted(Path("s").rglob("*")) == before  # nothing ran
    assert call(capsys, "report", "s")[0] == 2
    with monkeypatch.context() as patched:  # as if it had come from another process while this one ran
        patched.setattr(run_study, "refuse_other_versions", lambda study, place, cells: None)
        assert call(capsys, *words, "--only", "hard/*")[0] == 2
    code, out, _ = call(capsys, *words, "--allow-mixed")
    assert code == 0
    assert "4 done, 0 failed, 0 left" in out


def test_a_study_of_an_earlier_version_alone_is_shown_and_not_gone_on_with(capsys: Any) -> None:
    words = ("study", "mine.yaml", "--out", "s", "--only")
    assert call(capsys, *words, "hard/fedavg")[0] == 0
    (other,) = Path("s").glob("fedavg-*")
    age(other)
    assert call(capsys, *words, "hard/fedavg")[0] == 0
    code, _, err = call(capsys, *words, "hard/fedprox")
    assert code == 2
    assert f"1 run of 0.0.1; {other} is of 0.0.1, this is {__version__}" in err


@pytest.mark.parametrize(
    ("name", "text"),
    [("summary.json", "{"), ("config.yaml", "{"), ("env.json", "{"), ("env.json", '{"versions": null}')],
)
def test_whatever_file_of_a_finished_cell_is_damaged(capsys: Any, name: str, text: str) -> None:
    words = ("study", "mine.yaml", "--out", "s", "--only", "hard/fedavg")
    assert call(capsys, *words)[0] == 0
    (damaged,) = Path("s").glob("fedavg-*")
    (damaged / name).write_text(text)
    code, out, err = call(capsys, *words)
    assert code == 1
    assert "0 done, 1 failed, 0 left" in out
    assert f"{damaged / name}: damaged" in err


def test_the_page_says_what_is_done_failed_and_not_run(capsys: Any) -> None:
    Path("mine.yaml").write_text(STUDY.replace("{alpha: 0.2}", "{source: npz, path: none.npz, alpha: 0.2}"))
    call(capsys, "study", "mine.yaml", "seeds=2", "--out", "s", "--only", "mild/fedavg", "--only", "mild/fedprox/seed1")
    assert call(capsys, "study", "mine.yaml", "seeds=2", "--out", "s", "--only", "hard/fedavg/seed0")[0] == 1
    page = Path("s/report.html").read_text()
    notes = page.rpartition("</aside>")[0]
    limit = "3 of 8 cells done, 1 failed, 4 not run yet: the report names them in Cells of the study."
    assert limit in notes
    assert "Rows are means over unequal seeds: 0 and 1 for fedavg; 1 for fedprox." in notes
    why = "DataError: none.npz: no such file; expected an .npz with x_train, y_train, x_test, y_test"
    assert {row[0]: row[1:] for row in cells_of(page, "Cells of the study")} == {
        "mild/fedavg": ["0, 1", "–", "–", ""],
        "mild/fedprox": ["1", "–", "0", ""],
        "hard/fedavg": ["–", "0", "1", why],
    }
    assert "<p>Rows of which no seed was run yet: hard/fedprox.</p>" in page
    Path("s/report.html").unlink()
    assert call(capsys, "report", "s")[::2] == (0, f"{limit}\n")
    assert Path("s/report.html").read_text() == page  # the report that is made later knows the study, too
    assert json.loads(call(capsys, "report", "s", "--json")[1])["limits"] == [limit]
    assert call(capsys, "table", "s")[::2] == (0, f"{limit}\n")
    assert call(capsys, "table", "s", "--allow-mixed")[2] == ""
    (run, *_) = Path("s").glob("fedavg-*/summary.json")
    assert call(capsys, "report", str(run.parent), "--out", "one.html")[0] == 0
    assert "Cells of the study" not in Path("one.html").read_text()
    assert call(capsys, "study", "mine.yaml", "--out", "t", "--only", "mild")[0] == 0
    assert call(capsys, "report", "s", "t", "--out", "both.html")[0] == 0
    both = Path("both.html").read_text()
    assert [both.count(f">Cells of the study ({name})</h2>") for name in "st"] == [1, 1]
    assert f"s: {limit}" in both
    assert [both.count(f'id="{name}"') for name in ("cells", "cells-2")] == [1, 1]


def test_a_refused_call_leaves_its_folder_as_it_was(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(asks: str) -> None:
        raise ConfigError(f"{asks}: no Ray cluster is there")

    monkeypatch.setattr(run_study, "connected", refuse)
    assert call(capsys, "study", "mine.yaml", "--out", "s", "--on", "ray")[0] == 2
    assert not Path("s").exists()
    assert call(capsys, "study", "mine.yaml", "--out", "s", "--only", "hard/fedavg")[0] == 0
    kept = Path("s/study.yaml").read_text()
    larger = ("study", "mine.yaml", "seeds=2", "--out", "s")
    assert call(capsys, *larger, "--on", "ray")[0] == 2
    (other,) = Path("s").glob("fedavg-*")
    age(other)
    code, _, err = call(capsys, *larger, "--only", "hard/fedavg/seed1")
    assert code == 2
    assert f"{other} is of 0.0.1" in err
    assert Path("s/study.yaml").read_text() == kept


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["study", "none.yaml"], "none.yaml: no such config file"),
        (["study", "mine.yaml", "--only", "soft"], "--only 'soft' fits no cell"),
        (["study", "mine.yaml", "tune={optimizer.lr: []}"], "need a list of values, or a range"),
        (["study", "mine.yaml", "--out", "mine.yaml"], "mine.yaml is a file, not a folder"),
        (["study", "mine.yaml", "--out", "mine.yaml/deeper", "--plan"], "mine.yaml is a file, not a folder"),
        (["study", "mine.yaml", "--on", "ray", "--workers", "2"], "--on ray and --workers 2: the cluster decides"),
    ],
)
def test_what_cannot_be_is_one_line(capsys: Any, words: list[str], says: str) -> None:
    code, out, err = call(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
