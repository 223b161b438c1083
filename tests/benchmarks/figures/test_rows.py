"""Tidy rows of figures: values of the cells against those worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.figures.drawing import figure
from benchmarks.figures.rows import figure_rows
from fedloom.papers.recipe import find_recipe
from fedloom.results.result import Result
from fedloom.runs.storage.log import DriftRound, DriftValue, Row
from toy_results import MakeResult


def test_a_sweep_has_its_axis_and_panels_of_single_clients(make_result: MakeResult) -> None:
    done = {
        (f"cifar10-practical-mu-{mu}", "FedDW"): [make_result("feddw", seed, [0.5 + mu / 1000]) for seed in (0, 1)]
        for mu in (0.01, 1, 100)
    }
    rows = figure_rows(find_recipe("feddw/fig6"), done)
    assert {(row["panel"], row["row"]) for row in rows} == {("CIFAR-10, practical", "FedDW")}
    assert [(row["x"], row["seed"], round(row["accuracy"], 3)) for row in rows[2:4]] == [(1, 0, 50.1), (1, 1, 50.1)]
    digits = make_result("fedavg", 0, [0.5], client_accuracies=(0.1, 0.2, 0.3, 0.4, 0.9))
    mean, synthetic = figure_rows(find_recipe("fedco2/fig3"), {("alpha-0.7", "FedAvg"): [digits]})
    assert (mean["panel"], mean["x"], mean["accuracy"]) == ("mean over domains", 0.7, 50.0)
    assert (synthetic["panel"], synthetic["x"], synthetic["accuracy"]) == ("SynthDigits", 0.7, 40.0)


def test_curves_of_a_run_of_one_domain_and_of_single_nets(make_result: MakeResult) -> None:
    run = make_result("fedavg", 0, (0.2, 0.4), client_accuracies=(0.1, 0.2, 0.3, 0.9))
    whole = figure_rows(find_recipe("feddw/fig7"), {("cifar10-practical", "FedAvg"): [run]})
    assert [(row["x"], row["accuracy"]) for row in whole] == [(1, 20.0), (2, 40.0)]
    webcam = figure_rows(find_recipe("fedco2/fig2"), {("webcam", "FedAvg"): [run]})
    assert [(row["x"], row["accuracy"]) for row in webcam] == [(1, 90.0), (2, 90.0)]
    online = Row(round=2, client=3, split="test", protocol=run.numbers["protocol"], name="accuracy/online", value=0.6)
    run.rows.append(online)
    nets = figure_rows(find_recipe("fedco2/fig2"), {("webcam", "Fed-CO2"): [run]})
    assert [(row["row"], row["accuracy"]) for row in nets][2:] == [("Fed-CO2, online net", 60.0)]


def test_bars_of_a_table_have_the_other_predictors_own_accuracy(make_result: MakeResult) -> None:
    run = make_result("fedco2", 0, (0.5,))
    run.rows.append(
        Row(round=1, client=None, split="test", protocol=run.numbers["protocol"], name="accuracy/online", value=0.45)
    )
    alone = "Fed-CO2 (no intra and inter knowledge transfer)"
    rows = figure_rows(find_recipe("fedco2/table10"), {("domainnet", alone): [run]})
    assert [(row["row"], row["accuracy"]) for row in rows] == [(alone, 50.0), ("Online Model", 45.0)]


def test_bars_of_domains_stand_beside_their_mean(make_result: MakeResult) -> None:
    run = make_result("fedco2", 0, (0.2, 0.5), client_accuracies=(0.1, 0.2, 0.3, 0.9))
    rows = figure_rows(find_recipe("fedco2/fig7"), {("office", "Personalize BN"): [run]})
    assert {(row["panel"], row["row"]) for row in rows} == {("Office-Caltech10", "Personalize BN")}
    assert [(row["group"], round(row["accuracy"], 1)) for row in rows] == [
        *(("mean", 50.0), ("Amazon", 10.0), ("Caltech", 20.0), ("DSLR", 30.0), ("WebCam", 90.0))
    ]


def test_costs_are_those_until_the_best_of_the_weakest(make_result: MakeResult) -> None:
    def run(method: str, accuracies: tuple[float, ...], up: int) -> Result:
        made = make_result(method, 0, accuracies)
        for now in range(1, len(accuracies) + 1):
            for name, value in (("bytes_up", up), ("bytes_down", 2 * up), ("samples", 10)):
                made.rows.append(Row(round=now, client=None, split="system", protocol=None, name=name, value=value))
        made.numbers.update(samples=10 * len(accuracies), flops=9e6)
        return made

    done = {
        ("cifar10-10-clients", "FedProto"): [run("fedproto", (0.1, 0.5, 0.4), 100)],
        ("cifar10-10-clients", "FedSSA"): [run("fedssa", (0.6, 0.7, 0.8), 1000)],
    }
    weak, strong = figure_rows(find_recipe("fedssa/fig5"), done)
    assert (weak["target"], weak["accuracy"], weak["bytes"], weak["flops"]) == (50.0, 40.0, 600, pytest.approx(6e6))
    assert (strong["target"], strong["accuracy"], strong["bytes"], strong["flops"]) == (50.0, 80.0, 3000, 3e6)
    assert (strong["panel"], strong["x"]) == ("CIFAR-10", "N=10, C=100 %")


def test_of_models_the_lowest_seed_is_measured(make_result: MakeResult, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.figures.round_probes import ROUND_PROBES

    def measure(run: Result) -> list[dict[str, Any]]:
        return [{"x": 0.0, "y": 0.0, "loss": float(run.numbers["seed"])}]

    monkeypatch.setitem(ROUND_PROBES, "landscapes", measure)
    told: list[str] = []
    done = {("cifar10", "FedAvg"): [make_result("fedavg", seed) for seed in (4, 3)]}
    (row,) = figure_rows(find_recipe("fedskc/fig1b"), done, told.append)
    assert row == {"panel": "CIFAR-10, alpha 0.2", "row": "FedAvg", "seed": 3, "x": 0.0, "y": 0.0, "loss": 3.0}
    assert told == ["measuring FedAvg in cifar10, seed 3"]


def test_drift_has_the_length_of_each_part_in_decomposed_rounds(make_result: MakeResult) -> None:
    values = [DriftValue("local_drift", 0.5), DriftValue("drift", 2.0), DriftValue("diversity", 9.0)]
    result = replace(make_result("fedskc", 1), drift_rounds=[DriftRound(1, values), DriftRound(2, values[2:])])
    rows = figure_rows(find_recipe("fedskc/fig1a"), {("cifar10", "FedSKC"): [result]})
    assert [(row["row"], row["x"], row["part"], row["length"]) for row in rows] == [
        ("FedSKC", 1, "local", 0.5),
        ("FedSKC", 1, "drift", 2.0),
    ]
    (axes,) = figure("drift", rows).axes
    assert [line.get_label() for line in axes.get_lines()] == ["local", "drift"]


def test_nothing_done_is_no_row() -> None:
    assert figure_rows(find_recipe("feddw/fig6"), {}) == []
