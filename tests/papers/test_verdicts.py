"""Verdicts on values and orders, compared with golden numbers and numbers worked out by hand."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloom.papers.verdicts import equivalence, judge_order, judge_pairs, judge_value, rank_agreement

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "comparisons.json").read_text())["verdicts"]


@pytest.mark.parametrize("case", GOLDEN["cases"].values(), ids=GOLDEN["cases"])
def test_verdicts_equal_the_golden_ones(case: dict[str, Any]) -> None:
    printed = {"theirs_std": case["their_std"], "theirs_runs": case["their_seeds"]}
    judged = equivalence(case["ours"], case["theirs"], margin=GOLDEN["margin"], **printed)
    verdict = judge_value(case["ours"], case["theirs"], margin=GOLDEN["margin"], **printed)
    assert verdict.word == case["word"]
    if "why" in case:
        assert judged is None
        assert verdict.why.endswith(case["why"])
        return
    assert judged is not None
    assert (judged.difference, judged.degrees) == pytest.approx((case["difference"], case["df"]), abs=1e-7)
    assert judged.narrow == pytest.approx(case["interval90"], abs=1e-7)
    assert judged.wide == pytest.approx(case["interval95"], abs=1e-7)
    assert judged.needed == case["seeds_needed_at_this_spread"]


@pytest.mark.parametrize(("seeds", "largest"), GOLDEN["largest_std_that_can_be_reproduced"].items())
def test_the_largest_spread_that_can_be_reproduced(seeds: str, largest: float) -> None:
    n = int(seeds)
    unit = [(-1.0) ** k for k in range(n)]
    mean = sum(unit) / n
    std = (sum((value - mean) ** 2 for value in unit) / (n - 1)) ** 0.5
    for factor, word in ((0.999, "reproduced"), (1.001, "undecided")):
        ours = [70 + factor * largest * (value - mean) / std for value in unit]
        assert judge_value(ours, 70.0, margin=1.0).word == word


@pytest.mark.parametrize("case", GOLDEN["rates_three_seeds"])
def test_noise_does_not_pass(case: dict[str, float]) -> None:
    draw, words = Random(0), []
    for _ in range(300):
        ours = [draw.gauss(70 + case["true_difference"], case["std_over_seeds"]) for _ in range(3)]
        words.append(judge_value(ours, 70.0).word)
    assert words.count("reproduced") / 300 == pytest.approx(case["new_reproduced"], abs=0.05)
    assert words.count("differs") / 300 == pytest.approx(case["new_differs"], abs=0.09)


@given(st.lists(st.floats(60, 80), min_size=3, max_size=6), st.floats(60, 80), st.floats(0.1, 10))
def test_scaling_everything_changes_nothing(ours: list[float], theirs: float, factor: float) -> None:
    scaled = equivalence([factor * value for value in ours], factor * theirs, margin=factor, step=0.01 * factor)
    plain = equivalence(ours, theirs, margin=1.0)
    assert plain is not None
    assert scaled is not None
    assert scaled.narrow == pytest.approx([factor * bound for bound in plain.narrow], rel=1e-6, abs=1e-9)
    near_a_bound = min(abs(abs(bound) - 1) for bound in (*plain.narrow, *plain.wide)) < 1e-9
    assert near_a_bound or scaled.word == plain.word
    assert judge_value(ours, theirs, margin=1e9).word == "reproduced"
    assert judge_value(ours, theirs, margin=0.0).word != "reproduced"


def test_the_reason_says_what_would_decide() -> None:
    assert judge_value([70.0, 71.0, 72.0], 71.2).why == (
        "-0.20, 90 % interval -1.89 to +1.49 (3 seeds); would decide at this mean and spread: 7 seeds"
    )
    assert judge_value([60.0, 68.0, 66.0], 70.0).why.endswith("would decide at this mean and spread: 7 seeds")
    assert judge_value([66.0, 70.5, 73.9], 70.0).why.endswith("not within 20 seeds")
    assert judge_value([70.0, 70.1, 70.2], 70.1, theirs_std=0.4).why.endswith("; their spread is not counted")


def test_reasons_win_and_the_difference_is_printed() -> None:
    told = judge_value([71.0, 72.0], 71.0, reason="another network")
    assert (told.word, told.why) == ("not comparable", "another network; +0.50")
    assert judge_value([], 73.0).word == "not comparable"
    assert judge_value([71.0, 72.0], None).why == "nothing is printed"


@pytest.mark.parametrize(("reached", "missed", "word"), [(2, 1, "undecided"), (0, 3, "differs"), (0, 2, "undecided")])
def test_a_target_that_was_not_reached_leaves_no_mean(reached: int, missed: int, word: str) -> None:
    told = judge_value([40.0] * reached, 40.0, missed=missed)
    assert (told.word, told.why.split()[0]) == (word, str(missed))


ORDER_GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "comparisons.json").read_text())["orders"]


def test_the_golden_order() -> None:
    theirs, ours = ORDER_GOLDEN["theirs"], ORDER_GOLDEN["ours"]
    pairs = judge_pairs({name: (theirs[name], dict(enumerate(ours[name]))) for name in theirs})
    assert {"-".join(pair): word for pair, word in pairs.items()} == {
        name: pair["word"] for name, pair in ORDER_GOLDEN["pairs"].items()
    }
    agreement = rank_agreement([sum(values) for values in ours.values()], list(theirs.values()))
    assert agreement is not None
    assert (agreement.rho, agreement.chance) == pytest.approx((ORDER_GOLDEN["spearman"], ORDER_GOLDEN["chance"]))
    verdict = judge_order(agreement, list(pairs.values()))
    assert verdict.word == ORDER_GOLDEN["word"]
    assert verdict.why.startswith("9 pairs: 4 agree, 2 contradict, 3 undecided; rank correlation 0.40, 5 rows; 25.8 %")


def test_an_order_is_reproduced_if_half_of_its_pairs_agree_and_none_contradicts() -> None:
    agreement = rank_agreement([1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    assert agreement is not None
    assert agreement.chance == pytest.approx(1 / 120)
    assert judge_order(agreement, ["agrees", "undecided"]).word == "order reproduced"
    assert judge_order(agreement, ["agrees", "undecided", "undecided"]).word == "undecided"
    assert judge_order(agreement, ["agrees", "agrees", "contradicts"]).word == "order differs"
    assert judge_order(agreement, []).word == "undecided"


def test_an_order_that_chance_gives_often_is_undecided() -> None:
    # of five, 5 of 120 orders have rho >= 0.9; of six, 21 of 720 have rho >= 0.829 and 12 have >= 0.886
    swapped = rank_agreement([2, 1, 3, 4, 5], [1, 2, 3, 4, 5])
    assert swapped is not None
    assert (swapped.rho, swapped.chance) == (pytest.approx(0.9), pytest.approx(5 / 120))
    assert judge_order(swapped, ["agrees"]).word == "undecided"
    six = rank_agreement([3, 1, 2, 4, 5, 6], [1, 2, 3, 4, 5, 6]), rank_agreement([2, 1, 3, 4, 6, 5], [1, 2, 3, 4, 5, 6])
    assert [one.chance for one in six if one] == pytest.approx([21 / 720, 12 / 720])
    assert [judge_order(one, ["agrees"]).word for one in six] == ["undecided", "order reproduced"]


def test_equal_values_share_their_mean_rank() -> None:
    tied = rank_agreement([1, 2, 3, 4, 4], [10, 20, 30, 40, 50])  # 4 and 4 can change places
    assert tied is not None
    assert (tied.rho, tied.chance) == (pytest.approx(9.5 / (9.5 * 10) ** 0.5), pytest.approx(2 / 120))


def test_up_to_eight_rows_all_orders_are_counted() -> None:
    eight, nine = (rank_agreement(range(n), range(n)) for n in (8, 9))
    assert eight is not None
    assert nine is not None
    assert eight.chance == pytest.approx(1 / 40320)
    assert nine.chance == pytest.approx(0, abs=1e-9)


def test_pairs_that_are_printed_close_and_pairs_without_seeds_say_nothing() -> None:
    rows = {"a": (80.0, {0: 1, 1: 1, 2: 1}), "b": (79.5, {}), "c": (70.0, {0: 2, 1: 2})}
    assert judge_pairs(rows) == {("a", "c"): "undecided", ("b", "c"): "undecided"}
    assert judge_pairs({"a": (72.3, {}), "b": (71.3, {})}) == {("a", "b"): "undecided"}


def test_fewer_than_five_rows_have_counts_and_no_verdict() -> None:
    told = judge_order(rank_agreement([1, 2, 3, 4], [1, 2, 3, 4]), ["agrees"] * 6)
    assert told.word == "undecided"
    assert told.why == (
        "6 pairs: 6 agree, 0 contradict, 0 undecided; rank correlation 1.00, 4 rows: "
        "too few to tell an order from chance"
    )
    assert rank_agreement([1], [1]) is None
    assert rank_agreement([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]) is None
    assert judge_order(None, []).word == "not comparable"
    assert judge_order(None, [], "not run").why == "not run"
