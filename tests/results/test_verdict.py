"""The headline says no more than the rule of differences allows."""

from dataclasses import replace

import pytest

from fedloom.results.comparison import Comparison
from fedloom.results.pairs import all_paired
from fedloom.results.report import write_report
from fedloom.results.table import result_table
from fedloom.results.verdict import verdict, verdicts


@pytest.fixture
def say(make_result):
    """The verdict on {method: last accuracies by seed}."""

    def said(**methods):
        results = [make_result(m, s, (0.1, v)) for m, values in methods.items() for s, v in enumerate(values)]
        # toy data have few test samples, whose step would hide small differences
        rows = [{**row, "step": 1e-4} for row in result_table(results)]
        said.pairs = all_paired(rows, "fedavg")
        return verdict(rows)

    return said


def test_ahead(say):
    assert say(fedavg=(0.960, 0.962, 0.964), fedsc=(0.980, 0.983, 0.984)) == (
        "fedsc is ahead of fedavg, +2.0 points (98.2 ± 0.2 against 96.2 ± 0.2), "
        "95 % interval +1.9 to +2.2 (alone), 3 of 3 seeds, adjusted p <.001 of 1."
    )


def test_behind(say):
    assert say(fedavg=(0.93, 0.94, 0.95), fedsc=(0.90, 0.91, 0.921)).startswith("fedsc is behind fedavg, -3.0 points (")


def test_undecided_says_how_many_seeds_would_decide(say):
    assert say(fedavg=(0.90, 0.92, 0.94), fedsc=(0.91, 0.93, 0.93)) == (
        "fedsc against fedavg: undecided (needs more than 30 seeds), +0.3 points (92.3 ± 1.2 against 92.0 ± 2.0), "
        "95 % interval -2.5 to +3.2 (alone), 2 of 3 seeds, adjusted p .68 of 1."
    )


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_say_nothing(say, seeds):
    told = say(fedavg=(0.90, 0.91)[:seeds], fedsc=(0.95, 0.96)[:seeds])
    assert told.startswith("fedsc against fedavg: too few seeds, +5.0 points (95")
    assert ("interval" in told) == (seeds == 2)


def test_only_common_seeds_are_compared(say):
    assert "(95.0 against 90.0), 1 of 1 seed" in say(fedavg=(0.90, 0.80), fedsc=(0.95,))


def test_the_highest_mean_is_named_only_over_equal_seeds_and_without_equals(say):
    equal = say(fedavg=(0.8, 0.8, 0.8), fedsc=(0.8, 0.8, 0.8), moon=(0.8, 0.8, 0.8))
    assert equal.startswith("fedsc against fedavg: equivalent within ±1 point, +0.0 points (80.0 ± 0.0 against")
    assert equal.endswith("adjusted p 1 of 2; equivalent: moon (+0.0, within ±1 point).")
    assert "highest" not in say(fedavg=(0.8, 0.81, 0.82), fedsc=(0.82, 0.82, 0.83), moon=(0.7, 0.71))
    assert "moon has the highest mean of 3" in say(fedavg=(0.7, 0.7), fedsc=(0.6, 0.6), moon=(0.8, 0.8))


def test_a_method_with_too_few_seeds_does_not_lead(say):
    told = say(fedavg=(0.60, 0.61, 0.62), fedprox=(0.99,), moon=(0.62, 0.63, 0.64))
    assert told.startswith("moon is ahead of fedavg, +2.0 points (63.0 ± 1.0 against 61.0 ± 1.0)")
    assert told.endswith("; too few seeds: fedprox (+39.0).")


def test_a_pair_without_a_common_seed_has_too_few(make_result):
    rows = result_table([make_result("fedavg", 0, (0.9,)), make_result("fedsc", 1, (0.8,))])
    assert verdict(rows) == "fedsc against fedavg: no seed in common, 80.0 against 90.0."


def test_all_others_have_their_word(say):
    told = say(
        fedprox=(0.90, 0.901, 0.902), fedavg=(0.92, 0.92, 0.921), fedsc=(0.95, 0.951, 0.95), feddw=(0.92, 0.93, 0.91)
    )
    assert told.startswith("fedsc has the highest mean of 4; fedsc is ahead of fedavg, +3.0 points (")
    assert told.endswith("; undecided: feddw (-0.0, needs more than 30 seeds); behind: fedprox (-1.9).")


def test_the_baseline_with_the_highest_mean_is_named(say):
    told = say(fedavg=(0.92, 0.92, 0.921), fedsc=(0.91, 0.911, 0.912), feddw=(0.90, 0.90, 0.901))
    assert told.startswith("fedavg has the highest mean of 3; fedsc is behind fedavg, -0.9 points (")


def test_the_headline_says_no_more_than_the_line_below_it(say):
    """One of six comparisons, as the line of the pair says as well."""
    others = dict.fromkeys(("fedprox", "moon", "feddw", "fedbn", "fedper"), (0.9, 0.92, 0.91))
    told = say(fedavg=(0.9, 0.9, 0.9), fedsc=(0.921, 0.905, 0.926), **others)
    (pair, *_) = [pair for pair in say.pairs if pair.label == "fedsc"]
    assert f"fedsc against fedavg: {pair.outcome.verdict}, +1.7 points" in told
    assert told.count("of 6") == 1


def test_without_fedavg_two_are_compared_and_of_more_all_pairs(say):
    two = say(fedprox=(0.90, 0.90), fedsc=(0.95, 0.95))
    assert two.startswith("fedsc against fedprox: too few seeds, +5.0 points (")
    three = say(fedprox=(0.90, 0.901, 0.902), fedsc=(0.95, 0.951, 0.95), moon=(0.1, 0.2, 0.3))
    assert three == "fedsc has the highest mean of 3; over all pairs, no row is ahead of fedsc."
    near = say(fedprox=(0.90, 0.901, 0.902), fedsc=(0.901, 0.899, 0.906), moon=(0.91, 0.89, 0.9))
    assert near == "fedsc has the highest mean of 3; over all pairs, no row is told apart."
    few = say(fedprox=(0.90,), fedsc=(0.901,), moon=(0.91,))
    assert few == "moon has the highest mean of 3; too few seeds to tell them apart."


def test_a_single_row(say):
    assert say(fedsc=(0.9, 0.92)) == "fedsc reaches 91.0 ± 1.4 % accuracy (2 seeds)."
    assert say(fedsc=(0.9,)) == "fedsc reaches 90.0 % accuracy (one seed, so its spread is unknown)."


def test_protocols_are_never_ranked_together(make_result):
    rows = result_table([make_result("fedavg"), make_result("local", protocol="personal/local")])
    assert verdict(rows) == (
        "With protocol global/global: fedavg reaches 90.0 % accuracy (one seed, so its spread is unknown). "
        "With protocol personal/local: local reaches 90.0 % accuracy (one seed, so its spread is unknown)."
    )


def test_settings_that_were_varied_are_never_ranked_together(make_result):
    got = {(1, "fedavg"): 0.1, (1, "fedsc"): 0.2, (8, "fedavg"): 0.5, (8, "fedsc"): 0.4}
    results = [make_result(method, accuracies=[v], config={"rounds": n}) for (n, method), v in got.items()]
    said = verdict(result_table(results))
    assert "With rounds=1: fedsc against fedavg: too few seeds, +10.0 points" in said
    assert "With rounds=8: fedsc against fedavg: too few seeds, -10.0 points" in said
    assert "they differ in" not in said


def test_a_study_s_own_names_are_used(make_result):
    got = {("short", "FedAvg", "fedavg"): 0.1, ("short", "ours", "fedsc"): 0.2, ("long", "FedAvg", "fedavg"): 0.5}
    results = [
        replace(make_result(method, accuracies=[v], config={"rounds": len(setting)}), cell=(setting, row))
        for (setting, row, method), v in got.items()
    ]
    first, second = verdicts(result_table(results))
    assert first.startswith("short: ours against FedAvg: too few seeds, +10.0 points (")
    assert second.startswith("long: FedAvg reaches 50.0 % accuracy")


def test_protocols_of_one_setting_of_a_study_are_told_apart(make_result):
    results = [make_result("fedavg"), make_result("local", protocol="personal/local"), make_result("fedsc")]
    cells = [("mild", "fedavg"), ("mild", "local"), ("mild", "fedsc")]
    told = verdicts(result_table([replace(run, cell=cell) for run, cell in zip(results, cells, strict=True)]))
    assert [one.partition(":")[0] for one in told] == ["With protocol global/global", "With protocol personal/local"]


def test_other_settings_are_told_and_not_ranked_together(make_result):
    rows = result_table([make_result("fedavg", config={"rounds": 9}), make_result("fedsc", config={"rounds": 3})])
    assert verdict(rows) == (
        "With rounds=9: fedavg reaches 90.0 % accuracy (one seed, so its spread is unknown). "
        "With rounds=3: fedsc reaches 90.0 % accuracy (one seed, so its spread is unknown)."
    )
    named = [{**row, "cell": ("mild", row["method"])} for row in rows]
    assert [sentence.partition(":")[0] for sentence in verdicts(named)] == ["mild, rounds=9", "mild, rounds=3"]


def _diverging(result):
    return replace(result, numbers=result.numbers | {"test_loss": None})


def test_a_run_that_diverged_is_named_and_not_ranked(make_result):
    runs = [make_result("fedavg", 0, (0.1, 0.1)), _diverging(make_result("fedsc", 0, (0.1, 0.1)))]
    assert verdict(result_table(runs)) == (
        "fedavg reaches 10.0 % accuracy (one seed, so its spread is unknown); fedsc diverged, and is not ranked."
    )


def test_all_that_diverged_are_not_compared(make_result):
    runs = [_diverging(make_result(name, seed, (0.1, 0.1))) for name in ("fedavg", "fedsc") for seed in (0, 1)]
    said = verdict(result_table(runs))
    assert said == ("fedavg diverged with 2 of 2 and fedsc diverged with 2 of 2, and are not ranked.")


@pytest.mark.parametrize(
    "note", ["diverged: in round 2 the losses of 1 of 4 participants are not finite", "a.diverged"]
)
def test_the_finding_marks_a_run_whose_last_loss_is_finite(make_result, note):
    run = make_result("fedsc", 1, (0.1, 0.1))
    marked = replace(run, numbers=run.numbers | {"degenerate": [note]})
    rows = result_table([make_result("fedavg", 1, (0.1, 0.1)), marked])
    assert [row["diverged"] for row in rows] == [[], [1]]
    assert "fedsc against" not in verdict(rows)
    assert all_paired(rows, "fedavg") == []


def test_tables_have_a_column_of_what_diverged(make_result):
    runs = [make_result("fedavg", 0, (0.1, 0.1)), _diverging(make_result("fedsc", 0, (0.1, 0.1)))]
    markdown, csv = Comparison(runs).table("markdown"), Comparison(runs).table("csv")
    assert markdown.splitlines()[0].rstrip("| ").endswith("diverged")
    assert markdown.splitlines()[-1].rstrip("| ").endswith("seed 0")
    assert csv.splitlines()[0].endswith(",diverged")
    assert "diverged" not in Comparison(runs[:1]).table("markdown")


def test_training_on_pooled_data_is_named_and_not_ranked(say):
    text = say(fedavg=(0.7, 0.71, 0.72), fedsc=(0.8, 0.81, 0.82), central=(0.97, 0.98, 0.99))
    assert text.startswith("fedsc is ahead of fedavg")
    assert "central reaches 98.0 ± 1.0 % on the pooled data of all clients" in text
    assert say(central=(0.97, 0.98, 0.99)).startswith("central reaches")


def test_a_value_that_is_not_finite_leaves_its_row_out_and_names_it(say, make_result):
    nan = float("nan")
    text = say(fedavg=(0.5, 0.5, 0.51), fedsc=(nan, 0.6, 0.6), moon=(0.6, 0.61, 0.62))
    assert "fedsc against fedavg: not finite" in text or "not finite: fedsc" in text
    assert "highest mean" not in text
    runs = [make_result("fedavg", seed, (0.1, value), accuracy=None) for seed, value in enumerate((0.5, 0.5))]
    assert "nan" in Comparison(runs).table("latex")


TABLES = [
    {"fedavg": 0.5},
    {"moon": 0.5},
    {"fedavg": 0.5, "moon": 0.5},
    {"fedavg": 1.0, "moon": 1.0},
    {"fedavg": 0.0, "moon": 1.0},
    {"fedavg": float("nan"), "moon": 0.5},
    {"fedavg": 0.5, "moon": float("inf"), "fedsc": 0.4},
]


@pytest.mark.parametrize("seeds", [1, 2, 3])
@pytest.mark.parametrize("lost", [{}, {"degenerate": ["diverged: a loss was not finite"]}])
def test_no_edge_case_closes_a_door(make_result, seeds, lost, tmp_path):
    """One row, equal values, 0 and 100 %, values that are not finite, diverged rows: words, and no crash."""
    for table in TABLES:
        runs = [make_result(name, seed, (0.1, value), **lost) for name, value in table.items() for seed in range(seeds)]
        done = Comparison(runs)
        assert done.verdict().endswith(".")
        assert repr(done.summary()).count("accuracy") > 0
        assert done.table("latex").count(r"\midrule") == 1
        assert done.table("csv").count("\n") == len(table)
        assert len([pair.words() for pair in done.paired()]) == (0 if lost or "fedavg" not in table else len(table) - 1)
        if "fedavg" in table and not lost:
            assert done.pivot(interval=True, p_value=True, format="latex").count(r"\midrule") == 1
        assert write_report(runs, tmp_path / "report.html").exists()
