"""Results and comparisons as tables and as objects in a notebook."""

import csv
import sys

import pytest

from fedloom.core.errors import ConfigError
from fedloom.results.comparison import Comparison
from toy_results import cells_of


@pytest.fixture
def comparison(two_methods):
    return Comparison(two_methods)


def test_markdown_has_a_line_a_row(comparison):
    cells = cells_of(comparison.table())
    assert cells[0][:6] == ["method", "preset", "protocol", "select", "n", "accuracy %"]
    assert [row[0] for row in cells[1:]] == ["fedavg", "fedsc"]
    assert cells[1][4:6] == ["3", "96.0 ± 1.0"]
    assert cells[2][4:8] == ["3", "98.0 ± 1.0", "80.0", "1.00 kB"]


def test_signs_of_the_formats_are_escaped(make_result):
    row = Comparison([make_result("a|b_c%", best_val=None)])
    assert r"a\|b_c%" in row.table("markdown")
    latex = row.table("latex")
    assert r"a\textbar{}b\_c\%" in latex
    assert r"\begin{tabular}{@{}llllrrrrrr@{}}" in latex
    assert r"\caption{Results of the finished runs.}" in latex
    assert " -- " in latex
    assert r"$\pm$" in Comparison([make_result(seed=0), make_result(seed=1)]).table("latex")
    assert "&lt;b&gt;" in Comparison([make_result("<b>")])._repr_html_()


def test_csv_has_plain_numbers_and_the_settings_that_differ(make_result):
    other = {"scenario": {"source": "toy", "partition": "dirichlet", "alpha": 0.5, "seed": None}}
    results = [make_result(seed=s, config=c, best_val=None) for c in ({}, other) for s in (0, 1)]
    rows = list(csv.DictReader(Comparison(results).table("csv").splitlines()))
    assert [row["scenario.alpha"] for row in rows] == ["0.1", "0.5"]
    assert rows[0]["seeds"] == "0 1"
    assert (float(rows[0]["accuracy"]), rows[0]["std"], rows[0]["best_val"]) == (0.9, "0.0", "")
    assert float(rows[0]["bytes_up"]) == 1000.5  # mean of 1000 and 1001


def test_an_unknown_format_names_the_known(comparison):
    with pytest.raises(ConfigError, match=r"format = 'markdwn': did you mean 'markdown'.*latex, csv"):
        comparison.table("markdwn")


def test_what_a_notebook_and_a_prompt_show_is_short(comparison, two_methods):
    assert repr(two_methods[0]) == (
        "Result(fedavg (sound) on toy: 95.00 % accuracy, global/global, last, 3 rounds, seed 0)"
    )
    told = "Comparison(6 runs: fedsc against fedavg: undecided (needs about 7 seeds), +2.0 points (98.0 ± 1.0 against"
    assert repr(comparison).startswith(told)
    assert two_methods[0]._repr_html_().startswith("<table>")
    assert "98.0 ± 1.0" in comparison._repr_html_()
    assert len(comparison) == 6
    assert list(comparison) == two_methods


def test_pandas_has_measures_of_a_run_and_runs_of_a_comparison(comparison, two_methods):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = two_methods[0].to_frame()
    assert list(frame.columns) == ["round", "client", "split", "protocol", "name", "value"]
    assert len(frame) == len(two_methods[0].rows)
    runs = comparison.to_frame()
    assert isinstance(runs, pandas.DataFrame)
    assert list(runs["method"]) == ["fedavg"] * 3 + ["fedsc"] * 3
    assert list(runs["seed"]) == [0, 1, 2] * 2
    assert runs.groupby("method")["accuracy"].mean()["fedsc"] == pytest.approx(0.98)


def test_without_pandas_one_line_says_so(two_methods, comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for asked in (two_methods[0], comparison):
        with pytest.raises(ConfigError, match="the package pandas is not installed"):
            asked.to_frame()
