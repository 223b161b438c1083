"""What methods gain over the plain one: paired by seed, and no more said than seeds allow."""

from __future__ import annotations

import pytest

from fedloom.papers.compared_values import compare_values
from fedloom.papers.gains import Gain, gain_texts, gains
from fedloom.papers.measurements import measure
from fedloom.papers.recipe import find_recipe
from fedloom.papers.table_section import as_markdown
from fedloom.results.result import Result
from toy_results import MakeResult


def runs(make_result: MakeResult, method: str, *accuracies: float, first: int = 0) -> list[Result]:
    return [make_result(method, seed, [accuracy]) for seed, accuracy in enumerate(accuracies, first)]


def test_gains_are_paired_by_seed(make_result: MakeResult) -> None:
    recipe, column = find_recipe("feddw/table1"), "mnist-practical"
    done = {
        (column, "FedAvg"): runs(make_result, "fedavg", 0.50, 0.70, 0.90),
        (column, "FedDW"): runs(make_result, "feddw", 0.51, 0.72, 0.93),  # far below the spread, ahead on every seed
        (column, "FedDW [sound]"): runs(make_result, "feddw", 0.73, 0.89, 0.1, first=1),  # seed 3 has no partner
        (column, "FedProx"): runs(make_result, "fedprox", 0.4),
    }
    values = measure(recipe, done, {})
    found = {gain.row: gain for gain in gains(recipe, compare_values(recipe, values))}
    assert set(found) == {"FedDW", "FedDW [sound]", "FedProx"}
    assert found["FedDW"].ours == pytest.approx([1, 2, 3])
    assert found["FedDW"].theirs == pytest.approx(99.52 - 99.31)
    assert found["FedDW"].outcome == "no difference seen"  # 2 +- 4.303 / sqrt(3)
    assert gain_texts(found["FedDW"]) == ("+2.00", "-0.48 to +4.48", "+0.21")
    assert found["FedDW [sound]"].ours == pytest.approx([3, -1])
    assert found["FedDW [sound]"].theirs is None
    assert (found["FedProx"].outcome, gain_texts(found["FedProx"])[1]) == ("one seed", "–")
    page = as_markdown(recipe, values, "the paper's own setting")
    row = next(line for line in page.partition("Gains in points")[2].splitlines() if "| FedDW  " in line)
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *(column, "FedDW", "FedAvg", "3", "+2.00", "-0.48 to +4.48", "+0.21", "no difference seen")
    ]


@pytest.mark.parametrize(("ours", "seen"), [([1.0, 1.1, 1.2], "ahead"), ([-1.0, -1.1, -1.2], "behind")])
def test_a_gain_is_seen_where_its_interval_leaves_out_zero(ours: list[float], seen: str) -> None:
    assert Gain("cifar10", None, "FedDW", "FedAvg", ours, None).outcome == seen


def test_without_the_plain_method_there_is_no_gain(make_result: MakeResult) -> None:
    recipe = find_recipe("feddw/table1")
    values = measure(recipe, {("mnist-practical", "FedDW"): runs(make_result, "feddw", 0.5, 0.6)}, {})
    assert gains(recipe, compare_values(recipe, values)) == []
    assert "Gains in points" not in as_markdown(recipe, values, "the paper's own setting")


def test_gains_are_of_accuracies_alone(make_result: MakeResult) -> None:
    recipe = find_recipe("fedsc/table3")  # accuracy, and rounds to a target
    done = {
        ("cifar10", "FedAvg"): runs(make_result, "fedavg", 0.9, 0.9),
        ("cifar10", "FedSC"): runs(make_result, "fedsc", 0.9, 0.9),
    }
    found = compare_values(recipe, measure(recipe, done, {}))
    assert len({line.metric for line in found if line.was_run}) > 1
    (gain,) = gains(recipe, found)
    assert gain.outcome == "no difference seen"


@pytest.mark.parametrize(
    ("table", "row", "over"),
    [
        ("feddw/table4", "Fedavg", None),
        ("feddw/table4", "FedDW", "Fedavg"),
        ("feddw/table4", "FedDistill++DW", "FedDistill+"),
        ("fedskc/table5", "LCL", "FedAvg (no module)"),
        ("fedssa/table1", "FedSSA [authors]", "Standalone"),
        ("fedssa/table4", "C: FedSSA (M1+M2)", "A: LG-FedAvg (whole header averaged)"),
        ("fedco2/table10", "Online Model", "Fed-CO2 (no intra and inter knowledge transfer)"),
        ("fedsc/table5", "L2", None),
    ],
)
def test_every_row_knows_what_its_gain_is_over(table: str, row: str, over: str | None) -> None:
    assert find_recipe(table).baseline_of(row) == over
