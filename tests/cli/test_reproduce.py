"""The command `reproduce`: named, planned, refused without data, run on other data and then not compared."""

import csv
import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import fedloom as fl
from command_line import age, call
from fedloom.cli.app import main
from fedloom.core.errors import DataError
from fedloom.runs.run import run
from fedloom.runs.studies import runner
from pages import cells_of

CHANGED = ("scenario.source=digits", "model={name: mlp, hidden: [8]}", "rounds=1", "local_epochs=1", "engine=serial")
TABLE = "fedco2/table3"  # one of few cells: each call makes all of them
FEDAVG = (TABLE, *CHANGED, "--only", "cifar10-pathological/FedAvg", "--quiet")


@pytest.fixture(autouse=True)
def _without_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter_empty_folder(tmp_path, monkeypatch)


def enter_empty_folder(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Work in a folder without data."""
    patch.chdir(folder)
    patch.setenv("FEDLOOM_DATA", str(folder / "data"))


@pytest.fixture(scope="module")
def finished_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of which FedAvg's first seed is finished."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        enter_empty_folder(folder, patch)
        with pytest.raises(SystemExit) as ended:
            main(["reproduce", *FEDAVG, "--seeds", "1", "--out", "t"])
    assert not ended.value.code
    return folder / "t"


@pytest.fixture
def copied_table(finished_table: Path) -> Path:
    """A copy of the finished study, as the folder t."""
    return shutil.copytree(finished_table, Path("t"))


def test_the_list_names_every_table_with_cells_and_data(capsys: Any) -> None:
    code, out, _ = call(capsys, "reproduce", "--list", "--json")
    told = json.loads(out)
    tables = {row["name"]: row for row in told["tables"]}
    assert code == 0
    assert len(tables) == 32 + 32
    first = tables["feddw/table1"]
    assert first["cells"] == 560
    assert first["data"] == "mnist, cifar10, cifar100, imdb"
    assert first["missing"] == ["mnist", "cifar10", "cifar100", "imdb"]
    assert "nothing is run" in tables["fedco2/table6"]["facts"]


def test_a_plan_says_what_is_missing(capsys: Any) -> None:
    code, out, _ = call(capsys, "reproduce", "fedco2/table3", "--plan", "--only", "cifar10-pathological")
    assert code == 0
    assert "  1 cells,   0 done  cifar10-pathological/FedBN" in out
    assert "9 cells\nmissing: cifar10: source cifar10: no folder" in out
    assert not Path("runs").exists()


@pytest.mark.usefixtures("copied_table")
def test_a_plan_counts_finished_cells(capsys: Any) -> None:
    words = ("reproduce", TABLE, *CHANGED, "--only", "cifar10-pathological/Fed*", "--out", "t", "--plan")
    code, out, _ = call(capsys, *words, "--seeds", "2")
    assert code == 0
    assert "  2 cells,   1 done  cifar10-pathological/FedAvg" in out
    assert re.search(r"14 cells\n(missing.*\n)?about [\d.]+ \w+ on one core, judging by the finished runs", out)
    plan = json.loads(call(capsys, *words, "--seeds", "2", "--json")[1])
    done = {row["name"]: row["done"] for row in plan["rows"]}
    assert (len(done), sum(done.values()), done["cifar10-pathological/FedAvg"]) == (7, 1, 1)


def test_without_its_data_nothing_runs(capsys: Any) -> None:
    code, out, err = call(capsys, "reproduce", "feddw/table1", "--only", "mnist-practical")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "source mnist: no folder" in err
    assert "published by" in err
    assert "Nothing was run" in err
    assert not Path("runs").exists()


@pytest.mark.parametrize("words", [(), ("--plan",)])
def test_all_missing_domains_are_named_in_one_answer(capsys: Any, words: tuple[str, ...]) -> None:
    code, out, err = call(capsys, "reproduce", "fedco2/table7", *words)
    (line,) = [line for line in (out + err).splitlines() if "no folder" in line]
    for source in ("mnist", "svhn", "usps", "synthdigits", "mnist-m"):
        assert f"source {source}: no folder" in line
    assert line.count("expected there one of") == line.count("published by") == 5
    assert code == (0 if words else 2)


def test_cells_on_other_data_are_beside_the_paper_and_not_compared(capsys: Any) -> None:
    words = ("reproduce", TABLE, *CHANGED, "--seeds", "1", "--out", "t")
    code, _, err = call(
        capsys, *words, "--only", "cifar10-pathological/FedAvg", "--only", "cifar10-pathological/FedProx", "--quiet"
    )
    assert code == 0
    assert "our values next to the paper's: t/reproduced.md, t/reproduced.csv" in err
    rows = list(csv.DictReader(Path("t/reproduced.csv").read_text().splitlines()))
    assert [(row["row"], row["comparable"]) for row in rows] == [("FedAvg", "False"), ("FedProx", "False")]
    assert rows[0]["changed"].startswith("with scenario.source=digits")
    assert "engine" not in rows[0]["changed"]
    assert "torch" in rows[0]["machine"]
    page = Path("t/reproduced.md").read_text()
    assert "Setting: with scenario.source=digits" in page
    assert "| stand-in for cifar10-pathological | FedAvg" in page
    assert "no printed value is compared with them" in page
    assert "99.31" not in page
    assert "rank correlation" not in page


@pytest.mark.parametrize(("engine", "taken"), [("auto", True), ("{name: processes, workers: 2}", False)])
def test_a_cell_takes_one_core_unless_another_engine_is_named(capsys: Any, engine: str, taken: bool) -> None:
    words = ("reproduce", TABLE, *CHANGED[:-1], f"engine={engine}", "--seeds", "1", "--out", "t", "--quiet")
    assert call(capsys, *words, "--only", "cifar10-pathological/FedAvg")[0] == 0
    (summary,) = Path("t").glob("*/summary.json")
    assert json.loads(summary.read_text())["engine"] == ("serial" if taken else "processes")
    (row,) = csv.DictReader(Path("t/reproduced.csv").read_text().splitlines())
    assert bool(row["seconds"]) == taken
    assert ("core minutes" in Path("t/reproduced.md").read_text()) == taken


def test_the_page_has_the_papers_values_what_failed_and_what_was_left_open(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: Any, **how: Any) -> Any:
        if config.method == "fedprox":
            raise DataError("none.npz: no such file")
        return run(config, **how)

    monkeypatch.setattr(runner, "run", refuse)
    words = ("reproduce", TABLE, *CHANGED, "--seeds", "1", "--out", "t", "--only", "cifar10-pathological/FedAvg")
    assert call(capsys, *words, "--only", "cifar10-pathological/FedProx", "--quiet")[0] == 1
    told = Path("t/reproduced.md").read_text()
    assert "- stand-in for cifar10-pathological: failed: FedProx (seed 0): DataError: none.npz: no such file" in told
    assert "not run yet: SingleSet, FedPer, MOON, FedRoD, FedBN, Fed-CO2 and Fed-CO2 [authors].\n" in told
    page = Path("t/report.html").read_text()
    text = html.unescape(page)
    title = "Fed-CO2, Table 3: label skew on CIFAR"
    (row,) = cells_of(page, title)
    assert (row[:4], row[5:]) == (["stand-in for cifar10-pathological", "FedAvg", "test_accuracy_pct", "1"], ["–"])
    assert "No value is comparable (not the paper's data, so no printed value is compared with them)." in text
    assert "1 of 36 cells done, 1 failed, 34 not run yet" in text
    for line in told.splitlines():
        if line.startswith("- "):  # limits, and what the paper leaves open
            assert f"<li>{line.removeprefix('- ')}</li>" in text
    Path("t/report.html").unlink()
    assert call(capsys, "report", "t")[0] == 0
    assert Path("t/report.html").read_text() == page
    Path("t/reproduced.json").write_text("{}")
    code, _, err = call(capsys, "report", "t")
    assert (code, err.count("\n")) == (2, 1)
    assert "t/reproduced.json: damaged" in err


@pytest.mark.usefixtures("copied_table")
def test_more_seeds_join_those_that_are_done(capsys: Any) -> None:
    words = ("reproduce", *FEDAVG, "--out", "t")
    assert call(capsys, *words, "--seeds", "2")[0] == 0
    assert call(capsys, *words, "--seeds", "1")[0] == 0  # a part of it again hides nothing
    rows = list(csv.DictReader(Path("t/reproduced.csv").read_text().splitlines()))
    assert [row["seed"] for row in rows] == ["0", "1"]


def test_cells_of_another_version_are_joined_by_consent_alone(capsys: Any, copied_table: Path) -> None:
    words = ("reproduce", *FEDAVG, "--out", "t")
    (one,) = copied_table.glob("fedavg-*")
    age(one)
    for name in ("reproduced.csv", "report.html"):
        Path("t", name).unlink()
    before = sorted(Path("t").rglob("*"))
    code, out, err = call(capsys, *words, "--seeds", "2")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{one} is of 0.0.1" in err
    assert sorted(Path("t").rglob("*")) == before  # nothing was run or joined
    assert call(capsys, *words, "--seeds", "2", "--allow-mixed")[0] == 0
    rows = list(csv.DictReader(Path("t/reproduced.csv").read_text().splitlines()))
    assert [row["machine"].rpartition(" ")[2] for row in rows] == ["0.0.1", fl.__version__]


def test_a_figure_takes_the_finished_cells_of_its_table(capsys: Any) -> None:
    one = (*CHANGED, "--only", "cifar10-practical/FedAvg", "--seeds", "1", "--quiet")
    assert call(capsys, "reproduce", "feddw/table1", *one, "--out", "t")[0] == 0
    code, _, err = call(capsys, "reproduce", "feddw/fig7", *one, "--out", "f", "--reuse", "t")
    assert code == 0
    assert "1 of 1 cells copied from t" in err
    (cell,) = Path("t").glob("fedavg-*")
    assert (Path("f") / cell.name / "summary.json").read_text() == (cell / "summary.json").read_text()
    assert "this draws the figure: python -m benchmarks paper-figures f\n" in err
    assert "Choices where the paper is silent:" in Path("f/report.html").read_text()


def test_cells_that_are_finished_here_or_elsewhere_need_no_data(capsys: Any) -> None:
    import numpy as np

    x, y = np.random.default_rng(0).random((400, 8, 8), np.float32), np.arange(400) % 10
    np.savez("x.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    own = ("scenario.source=npz", "scenario.path=x.npz", *CHANGED[1:])
    words = ("reproduce", TABLE, *own, "--only", "cifar10-pathological/FedAvg", "--quiet")
    assert call(capsys, *words, "--seeds", "1", "--out", "t")[0] == 0
    Path("x.npz").unlink()
    assert call(capsys, *words, "--seeds", "1", "--out", "t")[0] == 0
    assert call(capsys, *words, "--seeds", "1", "--out", "u", "--reuse", "t")[0] == 0
    code, _, err = call(capsys, *words, "--seeds", "2", "--out", "t")
    assert code == 2
    assert "x.npz: no such file" in err


def test_a_refused_call_leaves_no_folder_and_no_study_behind(capsys: Any, finished_table: Path) -> None:
    words = ("reproduce", *FEDAVG)
    code, _, err = call(capsys, *words, "--out", "t", "--reuse", "nowhere")
    assert code == 2
    assert "nowhere: no study in this folder" in err
    assert not Path("t").exists()
    shutil.copytree(finished_table, "t")
    (one,) = Path("t").glob("fedavg-*")
    age(one)
    kept = Path("t/study.yaml").read_text()
    code, _, err = call(capsys, *words, "--out", "t", "--seeds", "2")
    assert code == 2
    assert f"{one} is of 0.0.1" in err
    assert Path("t/study.yaml").read_text() == kept


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["feddw/table9"], "unknown table 'feddw/table9': did you mean 'feddw/table"),
        (["feddw/table1", "--scale", "big"], "full or small"),
        (["fedco2/table6"], "nothing is run"),
        (["fedssa/fig3"], "Not drawn: a formula"),
        ([], "name a table"),
        (["feddw/table1", "--seeds", "20240101"], "20240101 is not in the range"),
        (["feddw/table1", "seeds=2"], "seeds is an option of `fedloom reproduce`; write --seeds 2"),
        (["feddw/table1", "optimizer.lr=[0.1, 0.01]"], "a table takes one value of a key"),
    ],
)
def test_what_cannot_be_is_one_line(capsys: Any, words: list[str], says: str) -> None:
    code, out, err = call(capsys, "reproduce", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
