"""The one rule that says which rows compare, and that all places keep to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedloom.results.comparability import (
    comparable,
    context_numbers,
    different_keys,
    panel_titles,
    row_names,
    same_runs,
    same_runs_notes,
)
from fedloom.results.comparison import Comparison
from fedloom.results.group import ResultRow
from fedloom.results.plot_values import plot_values
from fedloom.results.result import Result
from fedloom.results.table import result_table
from toy_results import MakeResult, toy_scenario

WORLD = toy_scenario() | {"test_samples": 10_000}


def study(make_result: MakeResult, rows: dict[str, dict[str, Any]], folder: Path | None = None) -> list[Result]:
    """Three seeds of each row of one unnamed setting; the accuracy rises from row to row."""
    return [
        replace(
            make_result(
                config.get("method", label), seed, (0.1, 0.5 + number / 10 + seed / 100), config=config, world=WORLD
            ),
            cell=("", label),
            folder=None if folder is None else folder / f"{label}-{seed}",
        )
        for number, (label, config) in enumerate(rows.items())
        for seed in range(3)
    ]


def scenario(alpha: float) -> dict[str, Any]:
    return {"scenario": {"source": "toy", "partition": "dirichlet", "alpha": alpha, "seed": None}}


UNLIKE = {
    "rounds": {"rounds": 9},
    "model": {"model": "cnn"},
    "alpha": scenario(1000.0),
    "batch_size": {"batch_size": 8},
}


@pytest.mark.parametrize("key", UNLIKE)
def test_a_row_of_another_setting_is_compared_nowhere(make_result: MakeResult, key: str) -> None:
    """Headline, lines by seed, tables and figures once answered differently about one pair."""
    done = Comparison(study(make_result, {"fedavg": {}, "fedprox": {}, "moon": UNLIKE[key]}))
    assert [pair.label for pair in done.paired()] == ["fedprox"]
    assert [pair.outcome.tested for pair in done.paired()] == [1]
    assert "fedprox is ahead of fedavg" in done.verdict()
    assert f"{key}={UNLIKE[key].get(key, 1000.0)}: moon reaches 71.0 ± 1.0 % accuracy (3 seeds)." in done.verdict()
    names = row_names(done.rows())
    titles = panel_titles(done.rows(), names)
    assert titles[0] == titles[1] != titles[2]
    assert key in titles[2]
    table = done.pivot("method", format="markdown", interval=True, p_value=True)
    moon = next(line for line in table.splitlines() if line.startswith("| moon"))
    assert [cell.strip() for cell in moon.strip("|").split("|")] == ["moon", "71.0 ± 1.0", "–", "–"]
    assert f"{titles[2]}: moon." in table
    assert len(plot_values(done.results, "dots").panels) == 2
    assert plot_values(done.results, "dots", against="fedavg").note.endswith(f"one of fedavg: moon {titles[2]}.")


def test_one_method_in_two_scenarios_of_one_setting_is_not_compared(make_result: MakeResult) -> None:
    done = Comparison(study(make_result, {"FedAvg": {"method": "fedavg"}, "iid": {"method": "fedavg"} | scenario(1e3)}))
    assert done.paired() == []
    head = done.pivot(format="markdown", p_value=True).splitlines()[0]
    assert "alpha=0.1, accuracy (%)" in head
    assert "alpha=1000.0, accuracy (%)" in head
    assert "Nothing is bold" in done.pivot(format="markdown")


@pytest.mark.parametrize("others", [{"fedprox": {}}, {"fedavg": {}, "scaffold": {}}])
def test_rows_of_several_studies_are_named_and_compared_by_their_keys(
    make_result: MakeResult, tmp_path: Path, others: dict[str, Any]
) -> None:
    unlike = {name: {"rounds": 9, **scenario(10.0)} for name in others}
    first = study(make_result, {"fedavg": {}, "moon": {}}, tmp_path / "first")
    done = Comparison(first + study(make_result, unlike, tmp_path / "second"))
    first_keys, second_keys = "(rounds=2, alpha=0.1)", "(rounds=9, alpha=10.0)"
    assert [row["label"] for row in done.rows()] == [
        *(f"{name} {first_keys}" for name in ("fedavg", "moon")),
        *(f"{name} {second_keys}" for name in others),
    ]
    pairs = [(pair.label, pair.reference) for pair in done.paired()]
    assert pairs[0] == (f"moon {first_keys}", f"fedavg {first_keys}")
    assert pairs[1:] == ([(f"scaffold {second_keys}", f"fedavg {second_keys}")] if "scaffold" in others else [])
    assert "–, accuracy" not in done.pivot(format="markdown", interval=True)


def test_several_studies_of_one_setting_are_one_table(make_result: MakeResult, tmp_path: Path) -> None:
    first = study(make_result, {"fedavg": {}}, tmp_path / "first")
    done = Comparison(first + study(make_result, {"fedavg": {}, "moon": {}}, tmp_path / "second"))
    assert [(row["label"], row["n"], row["repeats"]) for row in done.rows()] == [("fedavg", 3, 3), ("moon", 3, 0)]
    assert [pair.label for pair in done.paired()] == ["moon"]


def test_names_that_several_studies_give_different_settings_are_dropped(
    make_result: MakeResult, tmp_path: Path
) -> None:
    mild = [replace(run, cell=("mild", "fedavg")) for run in study(make_result, {"fedavg": {}}, tmp_path / "first")]
    harder = study(make_result, {"moon": {"rounds": 9}}, tmp_path / "second")
    done = Comparison(mild + [replace(run, cell=("mild", "moon")) for run in harder])
    assert [row["label"] for row in done.rows()] == ["fedavg (rounds=2)", "moon (rounds=9)"]
    assert [name.setting for name in row_names(done.rows())] == ["rounds=2", "rounds=9"]
    other = Comparison(mild + [replace(run, cell=("hard", "moon")) for run in harder])
    assert [row["label"] for row in other.rows()] == ["mild/fedavg", "hard/moon"]


def test_rates_and_own_options_may_differ_and_untuned_rates_are_named(make_result: MakeResult) -> None:
    configs = {"fedavg": {"optimizer": {"lr": 0.1}}, "moon": {"optimizer": {"lr": 0.01}, "moon": {"mu": 1.0}}}
    done = Comparison(study(make_result, configs))
    fedavg, moon = done.rows()
    assert comparable(fedavg, moon)
    assert different_keys(moon, fedavg) == "optimizer.lr (0.01 against 0.1)"
    assert done.verdict().endswith("; they differ in optimizer.lr (0.01 against 0.1) too.")
    assert done.paired()[0].words().endswith("; they differ in optimizer.lr (0.01 against 0.1) too")
    several = configs | {"fedprox": configs["fedavg"], "fedsc": {"optimizer": {"name": "adam"}}}
    assert "fedprox (+20.0) and moon (+10.0; it differs in optimizer.lr (0.01 against 0.1) too)" in (
        Comparison(study(make_result, several)).verdict()
    )
    absent = "they differ in optimizer.name (adam against none) and optimizer.lr (none against 0.1) too"
    assert absent in Comparison(study(make_result, several)).verdict()


def test_rows_of_different_settings_are_no_pair(make_result: MakeResult) -> None:
    assert Comparison(study(make_result, {"fedavg": {}, "moon": {"rounds": 9}})).paired() == []


def test_tuned_rows_compare_with_tuned_ones_only(make_result: MakeResult) -> None:
    sizes = {"fedavg": 8, "moon": 32, "fedprox": 8}
    rows = result_table(study(make_result, {name: {"batch_size": size} for name, size in sizes.items()}))
    tuned = [ResultRow(**{**row, "tuned": ["batch_size"]}) for row in rows[:2]]
    assert context_numbers([*tuned, rows[2]]) == [0, 0, 1]


def test_equal_runs_of_one_study_are_rows_of_their_own_that_count_once(make_result: MakeResult) -> None:
    labels = {"fedavg": "fedavg", "plain": "fedavg", "moon": "moon", "again": "moon"}
    runs = study(make_result, {"fedavg": {}, "moon": {}})
    pairs = [(label, run) for label, method in labels.items() for run in runs if run.numbers["method"] == method]
    done = Comparison([replace(run, cell=("", label)) for label, run in pairs])
    table = done.rows()
    assert [(row["label"], row["n"], row["repeats"]) for row in table] == [(label, 3, 0) for label in labels]
    assert same_runs(table[0], table[1])
    assert not same_runs(table[0], table[2])
    pairs = done.paired()
    assert [(pair.label, pair.reference) for pair in pairs] == [("moon", "fedavg"), ("again", "fedavg")]
    assert [pair.outcome.tested for pair in pairs] == [1, 1]
    assert done.verdict().startswith("moon is ahead of fedavg, ")
    assert done.verdict().endswith("; plain has the same runs as fedavg; again has the same runs as moon.")
    text = done.pivot(format="markdown", p_value=True)
    assert [line.split("|")[1].strip() for line in text.splitlines()[2:6]] == list(labels)
    assert f"{same_runs_notes(table)[0]}." in text
    assert done.same_runs() == same_runs_notes(table)
    assert done.same_runs()[0].endswith(": fedavg and plain; moon and again")
    assert text.count("**") == 4  # moon, under both of its names
    note = plot_values(done.results, "dots", against="fedavg").note
    assert same_runs_notes(table)[0] in note
    assert "no seed of its setting" not in note


def test_second_names_of_a_study_are_one_row_beside_another_study(make_result: MakeResult, tmp_path: Path) -> None:
    runs = study(make_result, {"fedavg": {}}, tmp_path / "first")
    named = [replace(run, cell=(setting, "fedavg")) for setting in ("mild", "spelled") for run in runs]
    assert [row["label"] for row in result_table(named)] == ["mild/fedavg", "spelled/fedavg"]
    other = study(make_result, {"moon": {"rounds": 9}}, tmp_path / "second")
    told = [(row["label"], row["n"], row["repeats"]) for row in result_table([*named, *other])]
    assert told == [("fedavg (rounds=2)", 3, 0), ("moon (rounds=9)", 3, 0)]
