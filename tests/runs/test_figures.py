"""Figures of a method's own, epsilon above all: in rows, summaries, tables, pages, and after a resume."""

import csv
import io

import pytest
from rich.console import Console

import fedloom as fl
from fedloom.cli.terminal import print_comparison, print_result
from fedloom.methods.wrappers.privacy import epsilon
from fedloom.results.comparison import Comparison
from fedloom.results.report import write_report
from fedloom.results.result import Result
from support import Stop


def shown(print_, *things):
    console = Console(file=io.StringIO(), width=200)
    print_(console, *things)
    return console.file.getvalue()


def private(rounds, **keys):
    scenario = fl.scenario("digits", partition="iid", clients=4)
    options = {"fedavg+dp": {"dp_noise": 1.5, "dp_delta": 1e-3}}
    return fl.run("fedavg+dp", scenario=scenario, model="mlp", rounds=rounds, local_epochs=1, **options, **keys)


def test_epsilon_is_in_the_result(tmp_path):
    wanted = [epsilon(1.5, 1, rounds, 4, 4, "poisson", 1e-3) for rounds in (1, 2)]
    result = private(2, out=tmp_path / "run")
    assert result.numbers["figures"] == {"epsilon": wanted[1], "delta": 1e-3}
    assert result.curve("epsilon", "system") == ([1, 2], wanted)
    assert result.summary()[0]["epsilon"] == wanted[1]
    read = Result.read(tmp_path / "run")
    assert read.numbers["figures"] == result.numbers["figures"]
    assert f"last), delta 0.001, epsilon {wanted[1]:.3g}, 2 rounds" in shown(print_result, read)  # beside accuracy
    assert "epsilon" in Comparison([read]).to_frame()


def test_a_resumed_run_has_spent_as_much(tmp_path):
    whole = private(3)
    keys = {"out": tmp_path / "run", "checkpoint": {"seconds": 0}}
    with pytest.raises(ConnectionError):
        private(3, callbacks=[Stop(2)], **keys)
    resumed = private(3, existing="resume", **keys)
    assert resumed.numbers["figures"] == whole.numbers["figures"]
    assert resumed.numbers["accuracy"] == whole.numbers["accuracy"]


@pytest.fixture
def mixed(make_result):
    """FedAvg, and two seeds of a private run of which one was stopped early."""
    figures = [{"epsilon": 12.345, "delta": 0.1}, {"epsilon": 3.0, "delta": 0.1}]
    return [make_result(), *(make_result("fedavg+dp", seed, figures=one) for seed, one in enumerate(figures))]


def test_tables_have_a_column_for_each_figure_that_a_row_has(mixed):
    table = Comparison(mixed)
    head, _, plain, private_ = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.table().splitlines()
    )
    after = 1 + next(place for place, name in enumerate(head) if name.startswith("accuracy"))
    assert head[after : after + 2] == ["delta", "epsilon"]  # what was paid for it
    assert plain[after : after + 2] == ["", ""]
    assert private_[after : after + 2] == ["0.1", "12.3"]  # the largest over seeds
    rows = list(csv.DictReader(table.table("csv").splitlines()))
    assert [row["epsilon"] for row in rows] == ["", "12.345"]
    assert "epsilon" in table.table("latex")
    assert "epsilon" not in Comparison(mixed[:1]).table()


def test_the_page_and_the_terminal_show_them(mixed, tmp_path):
    rows = Comparison(mixed).rows()
    page = write_report(mixed, tmp_path / "report.html").read_text()
    assert '<th scope="col" class="num">Epsilon</th>' in page
    assert 'data-value="12.345">12.3</td>' in page
    told = shown(print_comparison, rows)
    assert "epsilon" in told
    assert "12.3" in told
    assert "epsilon" not in shown(print_comparison, rows[:1])
