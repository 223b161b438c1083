"""What a target cost, how the worst clients fare, and differences seed by seed, with numbers worked out by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedloom.core.errors import ConfigError
from fedloom.core.files import json_text
from fedloom.results.comparison import Comparison
from fedloom.results.group import ResultRow, client_accuracies, worst
from fedloom.results.pairs import Paired, all_paired
from fedloom.results.result import Result
from fedloom.results.result_tables import reached, reached_mean
from fedloom.results.table import result_table
from fedloom.runs.storage.log import Row
from toy_results import MakeResult, cells_of, runs_by_seed


def with_costs(result: Result, up: int, down: int, samples: int) -> Result:
    """The same cost in every round."""
    rounds = result.curve()[0]
    for now in rounds:
        for name, value in (("bytes_up", up), ("bytes_down", down), ("samples", samples)):
            result.rows.append(Row(round=now, client=None, split="system", protocol=None, name=name, value=value))
    result.numbers.update(samples=samples * len(rounds), flops=1e6 * samples * len(rounds))
    return result


def test_the_first_crossing_counts_with_all_that_came_before(make_result: MakeResult) -> None:
    result = with_costs(make_result(accuracies=(0.2, 0.6, 0.5, 0.9)), 10, 5, 100)
    found = reached(result, 0.6)
    assert found is not None
    assert (found.round, found.bytes, found.flops) == (2, 30, pytest.approx(2e8))
    assert reached(result, 0.91) is None


def test_a_mean_over_seeds_says_how_many_got_there(make_result: MakeResult) -> None:
    runs = [
        with_costs(make_result(seed=k, accuracies=a), 1, 1, 1) for k, a in enumerate([(0.5, 0.8), (0.8, 0.8), (0, 0)])
    ]
    found = reached_mean(runs, 0.8)
    assert [found[key] for key in ("n", "of", "round", "bytes")] == [2, 3, 1.5, 3]
    assert reached_mean(runs, 0.9)["round"] is None


def test_a_table_of_targets_marks_diverged_runs_and_shows_targets_as_they_are(make_result: MakeResult) -> None:
    done = Comparison([make_result(), make_result("fedsc", test_loss=None)])
    cells = [tuple(row[:2]) for row in cells_of(done.target_table([0.9999, 0.05]))[1:]]
    assert cells == [(name, to) for name in ("fedavg", "fedsc (diverged with seed 0)") for to in ("99.99", "5")]
    assert done.target_table(0.05, "csv").splitlines()[0].endswith(",diverged")
    several = Comparison([make_result(), make_result("local", protocol="personal/local")])
    assert [row[1] for row in cells_of(several.target_table(0.05))] == ["protocol", "global/global", "personal/local"]


@pytest.mark.parametrize("target", [0, 80, float("nan"), -0.1])
def test_targets_are_shares(make_result: MakeResult, target: float) -> None:
    with pytest.raises(ConfigError, match="need an accuracy above 0 and up to 1"):
        reached(make_result(), target)


def test_the_worst_tenth_is_at_least_one_client(make_result: MakeResult) -> None:
    assert worst([0.5, 0.1, 0.9]) == 0.1
    assert worst([k / 100 for k in range(30)]) == pytest.approx(0.01)  # of 0.00, 0.01, 0.02
    assert worst([]) is None
    assert client_accuracies(make_result(client_accuracies=(0.2, 0.9)).rows) == {0: 0.2, 1: 0.9}


def rows(make_result: MakeResult, ours: dict[int, float], theirs: dict[int, float], **other: Any) -> Any:
    runs = [make_result("fedsc", seed, [value], **other) for seed, value in ours.items()]
    runs += [make_result("fedavg", seed, [value]) for seed, value in theirs.items()]
    return [{**row, "step": 1e-4} for row in result_table(runs)]  # toy data have a coarse one


def alone(row: ResultRow, reference: ResultRow) -> Paired:
    (pair,) = all_paired([row, reference], "fedavg")
    return pair


def test_pairs_are_compared_over_the_seeds_that_both_ran(make_result: MakeResult) -> None:
    found = alone(*rows(make_result, {0: 0.71, 1: 0.74, 2: 0.71, 9: 0.2}, {0: 0.70, 1: 0.71, 2: 0.69}))
    # differences 0.01, 0.03, 0.02: mean 0.02, std 0.01, t(0.975, 2) = 4.302653
    assert (found.seeds, found.left_out) == ([0, 1, 2], [9])
    assert found.outcome.mean == pytest.approx(0.02)
    assert [found.outcome.low, found.outcome.high] == pytest.approx([0.02 - 0.0248414, 0.0448414], abs=1e-6)
    assert found.outcome.word == "undecided"
    line = (
        "undecided (needs about 5 seeds), +2.0 points, 95 % interval -0.5 to +4.5 (alone), 3 of 3 seeds, adjusted p .07"
    )
    assert line in found.words()
    assert "of 1; alone p .074; checks: sign flips .25, signs .25" in found.words()
    assert "; seed 9 run by one of them alone" in found.words()


def test_a_difference_that_all_seeds_share_is_seen_and_one_seed_shows_nothing(make_result: MakeResult) -> None:
    assert alone(*rows(make_result, {0: 0.8, 1: 0.81, 2: 0.79}, {0: 0.7, 1: 0.70, 2: 0.7})).outcome.word == "ahead"
    one = alone(*rows(make_result, {0: 0.8}, {0: 0.7}))
    assert one.words() == "fedsc against fedavg: too few seeds, +10.0 points, 1 of 1 seed"


def test_methods_compared_with_one_row_are_a_family(make_result: MakeResult) -> None:
    others = dict.fromkeys(("fedsc", "moon", "feddw", "fedprox"), (0.52, 0.517, 0.526))
    # two seeds are not part of the family
    runs = runs_by_seed(make_result, {"fedavg": (0.5, 0.5, 0.5), **others, "fedbn": (0.9, 0.9)})
    pairs = all_paired([ResultRow(**{**row, "step": 1e-4}) for row in result_table(runs)], "fedavg")
    assert [pair.label for pair in pairs] == ["fedsc", "moon", "feddw", "fedprox", "fedbn"]
    assert [pair.outcome.tested for pair in pairs] == [4, 4, 4, 4, 0]
    # equal rows are one piece of evidence: the correction costs them nothing
    assert [pair.outcome.word for pair in pairs] == ["ahead"] * 4 + ["too few seeds"]


def test_rows_without_a_common_seed_are_not_paired(make_result: MakeResult) -> None:
    ours, theirs = rows(make_result, {0: 0.8}, {1: 0.7})
    assert all_paired([ours, theirs], "fedavg") == []


def test_rows_of_other_settings_are_not_paired_but_rates_may_differ(make_result: MakeResult) -> None:
    def run(method: str, alpha: float, lr: float, accuracy: float, seed: int) -> Result:
        world = {"source": "toy", "alpha": alpha}
        return make_result(method, seed, [accuracy], config={"scenario": world, "optimizer": {"lr": lr}})

    runs = [run("fedavg", a, 0.1, 0.5 + a, seed) for a in (0.1, 0.2) for seed in (0, 1)]
    runs += [run("fedsc", 0.2, 0.01, 0.8, seed) for seed in (0, 1)]
    (found,) = all_paired(result_table(runs), "fedavg")
    assert found.outcome.mean == pytest.approx(0.1)


def test_what_was_tuned_for_both_rows_may_differ(make_result: MakeResult, tmp_path: Path) -> None:
    def rows() -> list[ResultRow]:
        chosen = (("fedavg", 32, 0.5), ("fedsc", 64, 0.6))
        runs = [make_result(name, seed, [got], config={"batch_size": b}) for name, b, got in chosen for seed in (0, 1)]
        return result_table([replace(one, folder=tmp_path / str(k)) for k, one in enumerate(runs)])

    assert all_paired(rows(), "fedavg") == []
    (tmp_path / "trials").mkdir()
    record = {"group": "fedavg", "chosen": {"batch_size": 32}, "trials": [{"validation_accuracy": 0.5}]}
    (tmp_path / "trials" / "choice-fedavg.json").write_text(json_text(record))
    (found,) = all_paired(rows(), "fedavg")
    assert found.outcome.mean == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": "mlp"}, {"model": {"name": "mlp", "hidden": "[64]"}}),
        ({"scenario": {"attack": None}}, {"scenario": {"attack": {"kind": "noise"}}}),
        ({}, {"early_stopping": {"patience": 3}}),
    ],
)
def test_a_key_that_only_one_row_has_makes_another_setting(one: Any, other: Any, make_result: MakeResult) -> None:
    def run(method: str, config: Any, accuracy: float, seed: int) -> Result:
        return make_result(method, seed, [accuracy], config={**config, method: {"own": accuracy}})

    runs = [run("fedavg", one, 0.5, seed) for seed in (0, 1)] + [run("moon", one, 0.6, seed) for seed in (0, 1)]
    runs += [run("fedavg", other, 0.7, seed) for seed in (0, 1)] + [run("moon", other, 0.9, seed) for seed in (0, 1)]
    found = all_paired(result_table(runs), "fedavg")
    assert [one.outcome.mean for one in found] == pytest.approx([0.1, 0.2])


def test_the_table_of_a_target_in_all_formats(make_result: MakeResult) -> None:
    runs = [
        with_costs(make_result(seed=k, accuracies=a), 1000, 500, 10) for k, a in enumerate([(0.5, 0.8), (0.1, 0.2)])
    ]
    done = Comparison(runs)
    assert "| fedavg   |         80 |        1 of 2 |       2 | 3.00 kB |   2e+07 |" in done.target_table(0.8)
    convergence = [line.split("|")[2:5] for line in done.target_table([0.2, 0.8]).splitlines()[2:]]
    assert [[cell.strip() for cell in cells] for cells in convergence] == [["20", "2 of 2", "2"], ["80", "1 of 2", "2"]]
    assert "fedavg,0.8,1,2,2" in done.target_table(0.8, "csv")
    assert "--" in done.target_table(0.99, "latex")
