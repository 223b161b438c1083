"""The table of clients that never trained, beside numbers made by hand."""

import csv

import pytest

import command_line
from fedloom.results.comparison import Comparison
from fedloom.results.report import write_report
from fedloom.results.result import Result
from fedloom.results.table import grouped
from fedloom.results.unseen_tables import newcomer_rows
from toy_results import MakeResult, cells_of

WAYS = {"zero-shot": 0.2, "1-shot/all/5": 0.4, "10-shot/all/5": 0.5, "all-shot/head/5": 0.6, "all-shot/local/5": 0.3}


def runs_of(make_result: MakeResult, method: str, added: float = 0.0, note: str | None = None) -> list[Result]:
    """Runs of two seeds with newcomers 4 and 7; seed 1 is 0.1 higher, and client 7 is 0.2 higher than client 4."""
    runs = []
    for seed in (0, 1):
        values = {way: value + added + seed / 10 for way, value in WAYS.items()}
        tests = {way: {"accuracy": values[way], "clients": 2} for way in sorted(values)}  # as a file has them
        newcomers = {"clients": [4, 7], "zero_shot_note": note, "tests": tests, "majority_own": 0.35}
        run = make_result(method, seed, newcomers=newcomers)
        run.rows.extend(
            {"round": 3, "split": "newcomers", "name": "accuracy", "client": k, "value": value + d, "protocol": way}
            for way, value in values.items()
            for k, d in ((4, -0.1), (7, 0.1))
        )
        runs.append(run)
    return runs


@pytest.fixture
def done(make_result: MakeResult) -> Comparison:
    runs = runs_of(make_result, "fedavg") + runs_of(make_result, "local", -0.1, "its model is the initial one")
    return Comparison([*runs, make_result("fedprox")])


def test_means_are_over_seeds_and_ways_in_the_order_of_shots(done: Comparison) -> None:
    fedavg, local = newcomer_rows(grouped(done.results))
    assert (fedavg.label, fedavg.seeds, fedavg.majority) == ("fedavg", 2, pytest.approx(0.35))
    assert list(fedavg.served) == ["zero-shot", "1-shot/all/5", "10-shot/all/5", "all-shot/head/5", "all-shot/local/5"]
    assert fedavg.served["10-shot/all/5"] == pytest.approx([0.5, 0.6])
    spread = fedavg.spread["zero-shot"]
    assert (spread.clients, spread.worst10, spread.gap, spread.std) == (2, *map(pytest.approx, (0.15, 0.2, 0.1)))
    assert local.note == "its model is the initial one"


def test_a_table_has_a_column_for_each_way(done: Comparison) -> None:
    names, fedavg, local = cells_of(done.newcomer_table())
    assert (names[:3], names[-2:]) == (["method", "zero-shot %", "1-shot/all/5 %"], ["own majority %", "n"])
    assert fedavg[:2] == ["fedavg", "25.0 ± 7.1"]
    assert local[0] == "local (zero-shot: its model is the initial one)"
    lines = list(csv.DictReader(done.newcomer_table("csv").splitlines()))
    assert len(lines) == 2 * len(WAYS)
    assert (lines[1]["label"], lines[1]["served"]) == ("fedavg", "1-shot/all/5")
    assert float(lines[1]["accuracy"]) == pytest.approx(0.45)
    assert float(lines[1]["worst10"]) == pytest.approx(0.35)


def test_without_newcomers_and_for_domains_there_is_none(make_result: MakeResult) -> None:
    assert Comparison([make_result()]).newcomer_table() == ""
    domain = runs_of(make_result, "fedavg")
    for run in domain:
        run.config["scenario"] = {"held_out": {"domain": "north"}}
    assert Comparison(domain).newcomer_table() == ""


def test_the_report_and_the_command_show_it(done: Comparison, tmp_path, capsys) -> None:
    page = write_report(done.results, tmp_path / "report.html").read_text()
    assert "Clients that never trained" in page
    assert "25.0 ± 7.1" in page
    assert ">N<" not in page  # seeds are a small n, as in all tables
    code, _, error = command_line.call(capsys, "table", str(tmp_path), "--newcomers", "--domains")
    assert code == 2
    assert "are separate tables: ask for one of them" in error


def test_a_method_of_which_a_run_diverged_is_named(make_result: MakeResult) -> None:
    runs = runs_of(make_result, "fedgh", note="its model is the initial one")
    runs[1].numbers["degenerate"] = ["diverged: in round 58 the losses of 1 of 8 participants are not finite"]
    comparison = Comparison(runs)
    assert "fedgh (zero-shot: its model is the initial one; diverged with seed 1)" in comparison.newcomer_table()
    lines = list(csv.DictReader(comparison.newcomer_table("csv").splitlines()))
    assert {line["diverged"] for line in lines} == {"1"}
