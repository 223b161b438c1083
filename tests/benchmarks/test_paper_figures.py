"""The figures of reproductions, drawn by the project's script from folders that `fedloom reproduce` has filled."""

import csv
from pathlib import Path
from typing import Any

import pytest

from benchmarks import paper_figures
from command_line import call
from fedloom.core.errors import ConfigError

CHANGED = ("scenario.source=digits", "model={name: mlp, hidden: [8]}", "rounds=1", "local_epochs=1", "engine=serial")


def reproduce(capsys: Any, *words: str) -> None:
    code, _, err = call(capsys, "reproduce", *words, *CHANGED, "--seeds", "1", "--quiet")
    assert code == 0, err


def rows_of(panel: str) -> list[dict[str, str]]:
    rows = csv.DictReader(Path("f/figure.csv").read_text(encoding="utf-8").splitlines())
    return [row for row in rows if row["panel"] == panel]


def test_a_figure_of_models_ends_in_its_folder_as_pictures_and_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    reproduce(capsys, "feddw/fig4", "--only", "mnist", "--out", "f")
    paper_figures.main(["f"])
    assert "figure: f/figure.png, f/figure.svg, f/figure.csv" in capsys.readouterr().out
    rows = rows_of("MNIST")  # the other panels are the same cell on other data
    assert len(rows) == 20 * 10  # clients and classes
    assert rows[0]["changed"].startswith("with ")
    assert "local_epochs=1" in rows[0]["changed"]
    assert sum(float(row["norm"]) for row in rows if row["client"] == "7") == pytest.approx(1.0)
    assert Path("f/figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_is_drawn_as_bars_and_a_folder_of_something_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    reproduce(capsys, "fedco2/table3", "--only", "cifar10-pathological/FedAvg", "--out", "f")
    paper_figures.main(["f"])
    (row,) = rows_of("cifar10-pathological")
    assert (row["row"], row["seed"]) == ("FedAvg", "0")
    Path("f/reproduced.json").unlink()
    with pytest.raises(ConfigError, match="f: no reproduction in this folder"):
        paper_figures.draw(Path("f"))
