"""Verdicts and orders, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from fedloom.papers.verdicts import judge_order, judge_value, rank_agreement


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [
        ((70.0, 71.0, 72.0), 73.0, "reproduced"),  # t interval 71 ± 4.303 / sqrt(3): 68.5 to 73.5
        ((70.0, 71.0, 72.0), 73.6, "not reproduced"),
        ((70.9, 71.0, 71.1), 71.9, "near"),  # 70.8 to 71.2, 0.9 points away
        ((71.0,), 71.9, "near"),
        ((71.0,), 71.0, "near"),  # one seed has no interval, however close
        ((71.0,), 73.0, "not reproduced"),
        ((), 73.0, "not comparable"),
        ((71.0, 72.0), None, "not comparable"),
    ],
)
def test_a_value_is_judged(ours: tuple[float, ...], theirs: float | None, word: str) -> None:
    assert judge_value(ours, theirs).word == word


def test_reasons_win_and_rounds_are_never_near() -> None:
    assert judge_value([71.0, 72.0], 71.5, reason="another network").why == "another network"
    assert judge_value([5.0], 5.5, near=None).word == "not reproduced"
    assert "one seed, so no interval" in judge_value([71.0], 71.0).why
    assert judge_value([70.0, 71.0, 72.0], 73.0).why == "-2.00, inside 68.52 to 73.48 (3 seeds)"


def test_an_order_has_an_interval() -> None:
    # rho 1 counts as 1 - 6 / (5 * 24) = 0.95; atanh 1.831781, error sqrt(1.06 / 2) = 0.728011
    found = rank_agreement([1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    assert found is not None
    assert (found.n, found.rho) == (5, pytest.approx(1.0))
    assert (found.low, found.high) == (pytest.approx(0.38421, abs=1e-4), pytest.approx(0.99705, abs=1e-4))
    assert judge_order(found).word == "order reproduced"
    assert found.chance == pytest.approx(1 / 120)
    # squared rank differences 1 + 1 + 0 + 0 + 1 + 1: rho = 1 - 6 * 4 / (6 * 35)
    mixed = rank_agreement([1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 6, 5])
    assert mixed is not None
    assert mixed.rho == pytest.approx(1 - 24 / 210)
    assert judge_order(rank_agreement([1, 2, 3, 4, 5], [5, 4, 3, 2, 1])).word == "not reproduced"


def test_an_order_that_chance_gives_often_is_not_reproduced() -> None:
    # of five, 5 of 120 orders have rho >= 0.9 and one has 1; of six, 21 of 720 have rho >= 0.829 and 12 have >= 0.886
    swapped = rank_agreement([2, 1, 3, 4, 5], [1, 2, 3, 4, 5])
    assert swapped is not None
    assert swapped.low is not None
    assert swapped.low > 0  # by Fisher's interval alone it would be
    assert (swapped.rho, swapped.chance) == (pytest.approx(0.9), pytest.approx(5 / 120))
    assert judge_order(swapped).word == "not reproduced"
    assert judge_order(swapped).why.endswith("5 methods; 4.2 % of all orders agree as well")
    six = rank_agreement([3, 1, 2, 4, 5, 6], [1, 2, 3, 4, 5, 6]), rank_agreement([2, 1, 3, 4, 6, 5], [1, 2, 3, 4, 5, 6])
    assert [one.chance for one in six if one] == pytest.approx([21 / 720, 12 / 720])
    assert [judge_order(one).word for one in six] == ["not reproduced", "order reproduced"]


def test_equal_values_share_their_mean_rank() -> None:
    # 4 and 4 can change places: 2 of 120 orders are as good as the printed one
    tied = rank_agreement([1, 2, 3, 4, 4], [10, 20, 30, 40, 50])
    assert tied is not None
    assert (tied.rho, tied.chance) == (pytest.approx(9.5 / (9.5 * 10) ** 0.5), pytest.approx(2 / 120))
    # of three and three equal values, 3! * 3! = 36 of 720 orders are as good: 5 %
    halves = rank_agreement([1, 1, 1, 2, 2, 2], [5, 5, 5, 6, 6, 6])
    assert halves is not None
    assert (halves.rho, halves.chance) == (pytest.approx(1.0), pytest.approx(36 / 720))
    assert judge_order(halves).word == "not reproduced"
    many = rank_agreement([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8])
    assert many is not None
    assert many.chance is None
    assert judge_order(many).why.endswith("8 methods")


def test_too_few_methods_have_a_correlation_and_no_verdict() -> None:
    # rho 1 of four counts as 0.9; atanh 1.4722 - 1.96 sqrt(1.06) < 0: no order of four could be reproduced
    four = rank_agreement([1, 2, 3, 4], [1, 2, 3, 4])
    assert four is not None
    assert (four.rho, four.low, four.enough) == (pytest.approx(1.0), None, False)
    told = judge_order(four)
    assert told.word == "not comparable"
    assert told.why == "rank correlation 1.00; 4 methods: too few to tell an order from chance"
    assert judge_order(rank_agreement([2, 1], [1, 2])).why.startswith("rank correlation -1.00; 2 methods: too few")
    assert rank_agreement([1], [1]) is None
    assert rank_agreement([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]) is None
    assert judge_order(None).word == "not comparable"
