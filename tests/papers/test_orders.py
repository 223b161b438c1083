"""Orders beside the printed ones: pairs by golden numbers, chance by counting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom.papers.verdicts import judge_order, judge_pairs, rank_agreement

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "comparisons.json").read_text())["orders"]


def test_the_golden_order() -> None:
    theirs, ours = GOLDEN["theirs"], GOLDEN["ours"]
    pairs = judge_pairs({name: (theirs[name], dict(enumerate(ours[name]))) for name in theirs})
    assert {"-".join(pair): word for pair, word in pairs.items()} == {
        name: pair["word"] for name, pair in GOLDEN["pairs"].items()
    }
    agreement = rank_agreement([sum(values) for values in ours.values()], list(theirs.values()))
    assert agreement is not None
    assert (agreement.rho, agreement.chance) == pytest.approx((GOLDEN["spearman"], GOLDEN["chance"]))
    verdict = judge_order(agreement, list(pairs.values()))
    assert verdict.word == GOLDEN["word"]
    assert verdict.why.startswith("9 pairs: 4 agree, 1 contradict, 4 undecided; rank correlation 0.40, 5 rows; 25.8 %")


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
