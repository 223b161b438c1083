"""The command line: what it prints, where, and with which exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import call
from fedloom import __version__
from fedloom.methods import METHODS

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
SHORT = ["scenario.clients=2", "scenario.alpha=10", "rounds=1", "local_epochs=1", "engine=serial", "--quiet"]
QUICK = ["rounds=2", "local_epochs=1", "scenario.alpha=0.5", "scenario.clients=4"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_run_prints_one_json_object(capsys: Any) -> None:
    code, out, err = call(capsys, "run", str(DEMO), "method=fedsc", "seed=1", *QUICK, "--json")
    assert (code, err) == (0, "")
    numbers = json.loads(out)
    assert {"method", "preset", "seed", "rounds", "protocol", "accuracy", "best_val_accuracy"} <= numbers.keys()
    assert {"bytes_up", "bytes_down", "run_dir", "degenerate", "checkpoint_sha256"} <= numbers.keys()
    assert {"train", "evaluate", "aggregate", "total"} <= numbers["seconds"].keys()
    assert (numbers["method"], numbers["preset"], numbers["seed"]) == ("fedsc", "sound", 1)
    assert numbers["protocol"] == "global/global"
    assert 0 < numbers["accuracy"] <= 1
    assert isinstance(numbers["degenerate"], list)
    assert (Path(numbers["run_dir"]) / "summary.json").is_file()


def test_the_same_command_twice_trains_once_and_says_so(capsys: Any) -> None:
    words = ("run", str(DEMO), "method=fedavg", *QUICK, "--json")
    _, first, _ = call(capsys, *words)
    code, second, err = call(capsys, *words)
    assert code == 0
    assert json.loads(first) == json.loads(second)
    assert "nothing was trained" in err
    _, fresh, err = call(capsys, *words, "--fresh")
    assert err == ""
    assert json.loads(fresh)["checkpoint_sha256"] == json.loads(first)["checkpoint_sha256"]


def test_version_and_help(capsys: Any) -> None:
    assert call(capsys, "--version") == (0, f"fedloom {__version__}\n", "")
    for words in (["-h"], ["--help"], ["compare", "-h"]):
        code, out, err = call(capsys, *words)
        assert (code, err) == (0, "")
        assert "Usage: fedloom" in out
    code, out, err = call(capsys)
    assert (code, err) == (2, "")
    assert "Usage: fedloom" in out


def test_seed_and_rounds_as_options_and_a_quiet_run(capsys: Any) -> None:
    words = ("run", "configs/demo.yaml", "method=fedavg", *QUICK[1:], "--rounds", "2", "--seed", "3", "--quiet")
    code, out, err = call(capsys, *words)
    assert code == 0
    assert out.count("\n") == 1
    assert "2 rounds, seed 3" in out
    (line,) = err.splitlines()
    assert line.startswith("configs/demo.yaml is the ready config ")  # there is none here
    code, again, err = call(capsys, "run", "demo", "method=fedavg", *QUICK, "seed=3", "-q")
    assert (code, again) == (0, out)  # the same run
    assert "nothing was trained" in err


def test_progress_is_on_stderr(capsys: Any) -> None:
    code, out, err = call(capsys, "run", str(DEMO), "method=fedavg", *QUICK)
    assert code == 0
    assert err.splitlines()[0] == "fedavg seed 0: 2 rounds to go"
    assert "round 1 of 2, accuracy" in err
    assert "to go" not in out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(capsys: Any, monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    monkeypatch.setenv("_FEDLOOM_COMPLETE", f"complete_{shell}")
    for name, value in {"COMP_WORDS": "fedloom mo", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "fedloom mo"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    code, out, _ = call(capsys)
    assert code == 0
    assert "models" in out
    assert "methods" not in out


def test_a_broken_plugin_disables_nothing(tmp_path: Path) -> None:
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text("[fedloom.methods]\nmine = broken_mine:Mine\n")
    (tmp_path / "broken_mine.py").write_text("raise RuntimeError('two\\nlines')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    words = [sys.executable, "-m", "fedloom", "methods", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=True)
    assert "fedsc" in json.loads(done.stdout)
    why = "the plug-in of broken cannot be loaded (RuntimeError: two lines)"
    assert done.stderr == f"method 'mine' is left out: {why}\n"


def test_compare_writes_table_and_report(capsys: Any) -> None:
    words = ("compare", str(DEMO), *QUICK, "--methods", "fedavg,fedprox", "--seeds", "2", "--out", "both")
    code, out, _ = call(capsys, *words, "--json", "--jobs", "1")
    result = json.loads(out)
    assert code == 0
    assert [(row["method"], row["n"]) for row in result["table"]] == [("fedavg", 2), ("fedprox", 2)]
    assert all(row["std"] is not None for row in result["table"])
    assert Path(result["report"]).read_text().startswith("<!DOCTYPE html>")
    code, out, _ = call(capsys, *words)  # all four are reused
    assert code == 0
    assert "±" in out
    assert "report.html" in out


def test_a_failing_run_in_a_comparison_ends_it(capsys: Any, tmp_path: Path) -> None:
    words = ("compare", str(DEMO), *QUICK, "--methods", "fedavg,local", "--seeds", "1", "--out", "x", "--jobs", "2")
    code, _, err = call(capsys, *words)
    assert code == 2
    assert "local" in err or "no global model" in err


def test_inspect_shows_who_holds_what(capsys: Any) -> None:
    code, out, _ = call(capsys, "inspect", str(DEMO), "--json", "--out", "picture.png")
    picture = json.loads(out)
    assert code == 0
    assert len(picture["class_counts"]) == 10
    assert sum(map(sum, picture["class_counts"])) == picture["train_samples"]
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = call(capsys, "inspect", str(DEMO))
    assert "total variation" in out


def test_catalogues(capsys: Any) -> None:
    listed = json.loads(call(capsys, "methods", "--json")[1])
    assert set(listed) == set(METHODS.names())
    assert all(entry["summary"] for entry in listed.values())
    assert "tau" in json.loads(call(capsys, "methods", "fedsc", "--json")[1])["options"]
    assert "lenet5" in json.loads(call(capsys, "models", "--json")[1])
    assert "digits" in json.loads(call(capsys, "datasets", "--json")[1])
    facts = json.loads(call(capsys, "datasets", "csv", "--json")[1])
    assert facts["meanings"].keys() == facts["keys"].keys()
    assert facts["meanings"]["owner"].startswith("Column of the owner of a row")
    for noun in ("methods", "models", "datasets"):
        assert call(capsys, noun)[0] == 0


def test_an_exception_in_a_client_exits_1_with_traceback_client_and_round(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, net: Any, batch: Any, consts: Any) -> Any:
        raise ZeroDivisionError("the loss is broken")

    monkeypatch.setattr(METHODS.get("fedavg"), "loss", broken)
    code, out, err = call(capsys, "run", str(DEMO), "method=fedavg", "engine=serial", *QUICK, "--json")
    assert (code, out) == (1, "")
    assert "Traceback" in err
    assert "the loss is broken" in err
    assert "client 3 failed in round 1 (phase 0)" in err  # the largest goes first


def test_the_demo_is_the_documented_config(capsys: Any) -> None:
    code, out, _ = call(capsys, "demo", "--rounds", "1", "--seeds", "1", "--json")
    table = json.loads(out)["table"]
    assert code == 0
    assert [row["method"] for row in table] == ["fedavg", "fedsc"]
    written = yaml.safe_load(next(Path("runs/demo").glob("fedsc*/config.yaml")).read_text())
    assert (written["scenario"]["alpha"], written["scenario"]["clients"]) == (0.1, 10)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
@pytest.mark.parametrize("words", [["methods", "--json"], ["models"], ["--version"]])
def test_an_output_that_takes_no_more_is_one_line(words):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedloom", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert (
        done.stderr.strip()
        == "error: the output cannot be written (No space left on device); finished training is kept"
    )


def test_a_folder_in_the_home_directory_behind_an_option(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert call(capsys, "run", "demo", *SHORT, "--out=~/x")[0] == 0
    assert (tmp_path / "home" / "x" / "summary.json").is_file()
    assert not (tmp_path / "~").exists()


def test_a_name_of_bytes_that_are_no_text(capsys, tmp_path):
    folder = os.fsdecode(b"bad\xff")
    assert call(capsys, "run", "demo", *SHORT, "--out", folder)[0] == 0
    for command in (["table", folder], ["report", folder], ["run", "demo", *SHORT, "--out", folder, "--json"]):
        assert call(capsys, *command)[0] == 0
    assert b"bad\\udcff" in (tmp_path / folder / "report.html").read_bytes()
