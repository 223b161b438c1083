"""The commands for a paper: figures and tables from a study's folder, and the mistakes in calling them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from command_line import call
from fedloom.cli.app import main

STUDY = """
scenario: {source: digits, partition: dirichlet, clients: 2, alpha: [0.1, 1.0]}
model: {name: mlp, hidden: [8]}
rounds: 1
local_epochs: 1
engine: serial
methods: [fedavg, fedsc]
seeds: 3
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of two methods, two settings and three seeds."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "mine.yaml").write_text(STUDY)
    with pytest.raises(SystemExit) as ended:
        main(["study", str(folder / "mine.yaml"), "--out", str(folder / "study"), "--quiet"])
    assert not ended.value.code
    return folder / "study"


@pytest.fixture(autouse=True)
def _somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_study_becomes_figures_of_all_kinds_of_files(capsys: Any, finished: Path) -> None:
    code, out, err = call(capsys, "figure", str(finished), "curves", "--out", "f.pdf")
    assert (code, err) == (0, "")
    assert out.splitlines() == ["figure: f.pdf", "Line: mean over 3 seeds; band: ± 1 sample standard deviation."]
    assert Path("f.pdf").read_bytes().startswith(b"%PDF")
    code, out, _ = call(capsys, "figure", str(finished), "dots", "--out", "deep/er/f.svg", "--json")
    assert json.loads(out)["panels"] == ["alpha=0.1", "alpha=1.0"]
    assert b"<svg" in Path("deep/er/f.svg").read_bytes()
    assert call(capsys, "figure", str(finished), "curves", "--metric", "balanced_accuracy", "--width", "column")[0] == 0
    assert (finished / "curves.pdf").read_bytes().startswith(b"%PDF")
    run = next(folder for folder in finished.iterdir() if (folder / "summary.json").exists())
    assert call(capsys, "figure", str(run), "curves", "--out", "one.png", "--no-note", "--width", "4")[0] == 0
    assert Path("one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["curve"], "kind = 'curve': did you mean 'curves'?"),
        (["dots", "--out", "f.doc"], "f.doc: pictures end in one of .png, .svg, .pdf"),
        (["dots", "--out", "f"], "f: pictures end in one of"),
        (["dots", "--out", "file/f.pdf"], "file/f.pdf: the picture cannot be written there"),
        (["dots", "--out", "/proc/f.pdf"], "/proc/f.pdf: the figure cannot be written there"),
        (["dots", "--width", "wide"], "--width 'wide': need column, page, or inches from 2 to 30"),
        (["dots", "--width", "nan"], "--width 'nan'"),
        (["dots", "--metric", "balanced"], "no run has it; did you mean 'balanced_accuracy'?"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_file(capsys: Any, finished: Path, words: list[str], says: str) -> None:
    Path("file").touch()
    code, out, err = call(capsys, "figure", str(finished), *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert [path.name for path in Path().iterdir()] == ["file"]


def test_a_figure_of_a_study_without_finished_cells_says_how_far_they_are(capsys: Any, finished: Path) -> None:
    shutil.copytree(finished, "begun")
    for summary in Path("begun").glob("*/summary.json"):
        summary.unlink()
    code, out, err = call(capsys, "figure", "begun", "dots")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: no finished run there: begun/")
    assert "unfinished, 1 of 1 rounds" in err
    assert not Path("begun/dots.pdf").exists()


def test_cells_that_are_not_finished_are_counted_on_stderr(capsys: Any, finished: Path) -> None:
    shutil.copytree(finished, "part")
    shutil.rmtree(next(folder for folder in Path("part").iterdir() if (folder / "summary.json").exists()))
    code, out, err = call(capsys, "figure", "part", "dots")
    assert code == 0
    assert "2 to 3 seeds" in out
    assert "1" in err


def test_runs_of_a_repeated_seed_are_counted_on_stderr(capsys: Any, finished: Path) -> None:
    single = [folder for folder in finished.iterdir() if "seed0" in folder.name]
    for folder in single:
        shutil.copytree(folder, Path("again") / folder.name)
    for words in (["table"], ["table", "--target", "0.5"], ["figure", "dots"]):
        command, *more = words
        code, _, err = call(capsys, command, str(finished), "again", *more)
        assert code == 0
        assert err.count("1 run left out, whose seed is already counted.") == len(single) == 4


def test_a_study_becomes_a_pivot_in_every_format(capsys: Any, finished: Path) -> None:
    words = ("table", str(finished), "--rows", "method", "--columns", "alpha", "--cells", "accuracy,balanced_accuracy")
    code, out, err = call(capsys, *words)
    assert (code, err) == (0, "")
    assert "| alpha = 0.1, accuracy (%) | " in " ".join(out.splitlines()[0].split())
    latex = call(capsys, *words, "--format", "latex", "--caption", "Ours", "--p-value")[1]
    assert r"\multicolumn{4}{c}{alpha = 0.1} & \multicolumn{4}{c}{alpha = 1.0}" in latex
    assert r"\caption{Ours.}" in latex
    assert r"\label{tab:study}" in latex
    shares = call(capsys, *words, "--format", "csv", "--units", "share")[1]
    assert shares.startswith('method,"alpha = 0.1, accuracy (share)"')
    text = call(capsys, "table", str(finished), "--interval", "--format", "text")[1]
    assert "alpha=0.1, over fedavg [95 %]" in text
    assert call(capsys, "table", str(finished), "--format", "text")[1].startswith("method ")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--caption", "Ours", "--label", "x"), "--caption and --label: only for a table with --rows"),
        (("--units", "share", "--costs"), "--units: only for a table with --rows"),
        (("--cells", "accuracy", "--against", "fedsc"), "--against: only with --interval or --p-value"),
    ],
)
def test_an_option_that_a_table_would_ignore_is_refused(
    options: tuple[str, ...], says: str, tmp_path: Path, capsys: Any
) -> None:
    code, _, error = call(capsys, "table", str(tmp_path), *options)
    assert code != 0
    assert says in error


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rows", "method"], "two values in a cell (method fedavg): scenario.alpha still varies (0.1 and 1.0)"),
        (["--columns", "alhpa"], "'alhpa': no run has this key; did you mean 'alpha'?"),
        (["--rows", "alpha,method", "--cells", "acc"], "--cells 'acc': no run has it; did you mean 'accuracy'?"),
        (["--columns", "seed"], "seed: each cell is a mean over seeds"),
        (["--p-value", "--against", "moon"], "--against 'moon': no finished row of it"),
        (["--rows", "method", "--costs"], "are separate tables"),
        (["--format", "latx"], "format = 'latx': did you mean 'latex'?"),
    ],
)
def test_pivots_that_cannot_be_are_one_line(capsys: Any, finished: Path, words: list[str], says: str) -> None:
    code, out, err = call(capsys, "table", str(finished), *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
