"""What methods gain over the plain one: paired by seed, and no more said than seeds allow."""

import pytest

from benchmarks.tables.gains import gain_lines, gains, gains_sheet
from fedloom.papers.compared_values import compare_values
from fedloom.papers.measurements import measure
from fedloom.papers.recipe import find_recipe
from fedloom.results.result import Result
from toy_results import MakeResult, with_test_samples


@pytest.fixture
def make_result(make_result: MakeResult) -> MakeResult:
    return with_test_samples(make_result, 10_000)


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
    values = measure(recipe, done)
    computed = {(gain.row, gain.baseline): gain for gain in gains(recipe, compare_values(recipe, values))}
    assert set(computed) == {
        ("FedDW", "FedAvg"),
        ("FedDW", "FedProx"),
        ("FedDW [sound]", "FedAvg"),
        ("FedProx", "FedAvg"),
    }
    feddw = computed["FedDW", "FedAvg"]
    assert (feddw.group, feddw.ours.n, feddw.ours.mean) == ("own", 3, pytest.approx(2))
    assert feddw.theirs == pytest.approx(99.52 - 99.31)
    assert (feddw.ours.word, feddw.holds_theirs) == ("undecided", True)  # 2 +- 4.303 / sqrt(3)
    sound = computed["FedDW [sound]", "FedAvg"]
    assert (sound.group, sound.ours.mean, sound.theirs) == ("variants", pytest.approx(1), None)
    assert (computed["FedProx", "FedAvg"].ours.word, computed["FedProx", "FedAvg"].holds_theirs) == (
        "too few seeds",
        None,
    )
    row = next(row for row in gains_sheet(list(computed.values())).texts if row[1:3] == ["FedDW", "FedAvg"])
    assert row == [
        *(
            column,
            "FedDW",
            "FedAvg",
            "3",
            "+2.00",
            "-0.48 to +4.48",
            "+0.21",
            "yes",
            "0.074",
            "undecided (needs about 5 seeds)",
        )
    ]


def test_the_own_method_is_counted_apart_from_baselines(make_result: MakeResult) -> None:
    recipe, column = find_recipe("feddw/table4"), "cifar100"
    done = {
        (column, "Fedavg"): runs(make_result, "fedavg", 0.50, 0.51, 0.52),
        (column, "FedDW"): runs(make_result, "feddw", 0.40, 0.41, 0.42),  # printed above
        (column, "MOON"): runs(make_result, "moon", 0.60, 0.61, 0.62),  # printed above Fedavg, below FedDW
        (column, "MOON+DW"): runs(make_result, "moon+dw", 0.60, 0.63, 0.61),
        (column, "FedUV"): runs(make_result, "feduv", 0.5),
    }
    computed = gains(recipe, compare_values(recipe, measure(recipe, done)))
    assert [(gain.row, gain.baseline) for gain in computed if gain.group == "own"] == [
        *(("FedDW", "Fedavg"), ("FedDW", "MOON"), ("FedDW", "FedUV"), ("MOON+DW", "MOON"))
    ]
    assert gain_lines(computed) == [
        "own method: 0 of 3 printed gains seen, 2 contradicted, 1 undecided; 1 with too few seeds",
        "baselines: 1 of 1 printed gains seen, 0 contradicted, 0 undecided; 1 with too few seeds",
    ]


def test_gains_printed_as_losses_are_a_line_of_their_own(make_result: MakeResult) -> None:
    recipe, column = find_recipe("feddw/table1"), "cifar10-practical"
    done = {
        (column, "FedAvg"): runs(make_result, "fedavg", 0.50, 0.51, 0.52),
        (column, "Local"): runs(make_result, "local", 0.30, 0.31, 0.32),
    }
    computed = gains(recipe, compare_values(recipe, measure(recipe, done)))
    assert gain_lines(computed)[1:] == [
        "baselines: no printed gains of three seeds or more",
        "printed as zero or below: 1 of 1 printed losses seen, 0 contradicted, 0 undecided",
    ]


def test_without_the_plain_method_there_is_no_gain(make_result: MakeResult) -> None:
    recipe = find_recipe("feddw/table1")
    values = measure(recipe, {("mnist-practical", "FedDW"): runs(make_result, "feddw", 0.5, 0.6)})
    assert gains(recipe, compare_values(recipe, values)) == []


def test_gains_are_of_accuracies_alone(make_result: MakeResult) -> None:
    recipe = find_recipe("fedsc/table3")  # accuracy, and rounds to a target
    done = {
        ("cifar10", "FedAvg"): runs(make_result, "fedavg", 0.9, 0.9, 0.9),
        ("cifar10", "FedSC"): runs(make_result, "fedsc", 0.9, 0.9, 0.9),
    }
    found = compare_values(recipe, measure(recipe, done))
    assert len({line.metric for line in found if line.was_run}) > 1
    (gain,) = gains(recipe, found)
    assert gain.ours.word == "equivalent"


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
