"""The commands about several runs: compare over lists, report and table over folders."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from command_line import call

DEMO = Path(__file__).parents[2] / "configs" / "demo.yaml"
QUICK = ["rounds=1", "local_epochs=1", "scenario.clients=3", "engine=serial"]


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_grid_and_a_run_below_one_folder_make_one_table(capsys: Any) -> None:
    words = ("compare", str(DEMO), *QUICK, "scenario.alpha=[0.1,1.0]", "--methods", "fedavg,fedprox", "--seeds", "1")
    code, out, _ = call(capsys, *words, "--out", "all/grid", "--jobs", "1", "--json")
    table = json.loads(out)["table"]
    assert code == 0
    assert [(row["method"], row["setting"]["scenario.alpha"]) for row in table] == [
        ("fedavg", "0.1"),
        ("fedprox", "0.1"),
        ("fedavg", "1.0"),
        ("fedprox", "1.0"),
    ]
    call(capsys, "run", str(DEMO), *QUICK, "method=fedavg", "seed=7", "--out", "all/deep/er/one", "--json")
    Path("all/pictures").mkdir()
    code, out, err = call(capsys, "table", "all", "--format", "csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0
    assert {(row["method"], row["scenario.alpha"], row["seeds"]) for row in rows} == {
        ("fedavg", "0.1", "0 7"),
        ("fedprox", "0.1", "0"),
        ("fedavg", "1.0", "0"),
        ("fedprox", "1.0", "0"),
    }
    assert err == "left out: all/pictures: no run in it\n"
    assert call(capsys, "table", "all")[1].startswith("| method")
    assert r"\begin{tabular}" in call(capsys, "table", "all", "--format", "latex")[1]
    code, out, _ = call(capsys, "report", "all", "--json")
    made = json.loads(out)
    assert code == 0
    assert made["left_out"] == [{"folder": "all/pictures", "why": "no run in it"}]
    assert sum(row["n"] for row in made["table"]) == 5
    code, out, err = call(capsys, "report", "all", "--out", "t.csv")
    assert (code, out, err.count("\n")) == (2, "", 1 + 0)
    assert "fedloom table RUNS --format csv" in err
    assert not Path("t.csv").exists()


def test_numbers_that_are_not_finite_never_reach_json(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedloom.results.comparison import Comparison

    call(capsys, "run", str(DEMO), *QUICK, "method=fedavg", "--out", "one", "--json")
    monkeypatch.setattr(Comparison, "rows", lambda self: [{"std": float("nan"), "accuracy": [float("inf"), 0.5]}])
    _, out, _ = call(capsys, "report", "one", "--json")
    assert json.loads(out, parse_constant=pytest.fail)["table"] == [{"std": None, "accuracy": [None, 0.5]}]
