"""The summary of a run and of a comparison: a table for people, plain values for programs."""

import html
import io

import pandas
import pytest
from rich.console import Console

import fedloom as fl
from fedloom.cli.terminal import print_result


@pytest.fixture(scope="module")
def compared() -> fl.Comparison:
    scenario = fl.scenario("digits", partition="dirichlet", alpha=0.5, clients=3)
    return fl.compare(["fedavg", "fedprox"], scenario=scenario, seeds=2, rounds=1, local_epochs=1, engine="serial")


def test_a_summary_prints_as_a_table_and_not_as_dicts(compared, capsys) -> None:
    print(compared.results[0].summary())
    heading, line, row = capsys.readouterr().out.splitlines()
    assert heading.split()[:5] == ["method", "preset", "seed", "protocol", "select"]
    assert set(line) == {"-", " "}
    assert row.split()[:5] == ["fedavg", "sound", "0", "global/global", "last"]
    assert row.split()[-1] == "1"
    assert float(row.split()[-3]) == pytest.approx(100 * compared.results[0].numbers["accuracy"], abs=0.05)


def test_the_plain_values_have_another_name_and_stay_a_list(compared) -> None:
    result = compared.results[0]
    assert type(result.summary()[0]) is dict
    assert result.accuracy == result.summary()[0]["accuracy"]
    assert result.summary()[0]["accuracy"] == result.numbers["accuracy"]
    assert pandas.DataFrame(result.summary()).shape == (1, 8)


def test_a_summary_is_a_html_table_in_a_notebook(compared) -> None:
    for summary in (compared.summary(), compared.results[0].summary()):
        assert summary._repr_html_().startswith("<table>")
    assert html.escape(compared.verdict()) in compared.summary()._repr_html_()


def test_a_comparison_prints_a_row_for_each_method_and_the_verdict(compared) -> None:
    lines = str(compared.summary()).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["fedavg", "fedprox"]
    assert lines[-1] == compared.verdict()
    assert [row["n"] for row in compared.summary()] == [2, 2]


def test_a_comparison_without_runs_has_an_empty_summary() -> None:
    empty = fl.Comparison([])
    assert len(str(empty.summary()).splitlines()) == 2
    assert repr(empty) == "Comparison(0 runs)"
    assert empty.summary()._repr_html_()


def test_diagnostics_and_control_characters_stand_below_the_table_in_one_line_each(compared) -> None:
    result = compared.results[0]
    noted = fl.Result({**result.numbers, "degenerate": ["a\nb\x1b[2J<i>"]}, result.rows, result.config, result.scenario)
    assert str(noted.summary()).splitlines()[-1] == r"note: a\nb\x1b[2J<i>"
    assert "<i>" not in noted.summary()._repr_html_()


def test_an_accuracy_that_is_missing_is_a_dash(compared) -> None:
    result = compared.results[0]
    without = fl.Result({**result.numbers, "best_val_accuracy": None}, result.rows, result.config, result.scenario)
    assert str(without.summary()).splitlines()[-1].split()[-2] == "–"


def test_wherever_an_epsilon_is_shown_its_accuracy_is_beside_it(make_result) -> None:
    budget = {"delta": 1e-3, "epsilon": 5.25}
    runs = [make_result("fedavg+dp", seed, accuracies=(0.5 + seed / 10,), figures=budget) for seed in (0, 1)]
    done = fl.Comparison([*runs, *(make_result(seed=seed) for seed in (0, 1))])
    texts = [repr(done.summary()), *(done.table(format=kind) for kind in ("text", "markdown", "latex"))]
    for text in texts:
        headings = next(line for line in text.splitlines() if "accuracy" in line)
        assert headings.index("accuracy") < headings.index("epsilon") < headings.index("best val")
        assert "55.0" in next(line for line in text.splitlines() if "5.25" in line)
    assert {"accuracy", "epsilon"} <= done.summary()[0].keys() | runs[0].summary()[0].keys()
    assert "fedavg+dp: epsilon 5.25, delta 0.001." in done.pivot("method", format="latex")
    stream = io.StringIO()
    print_result(Console(file=stream, width=200), runs[0], brief=True)
    assert "accuracy 50.00 % (global/global, last), delta 0.001, epsilon 5.25," in stream.getvalue()
