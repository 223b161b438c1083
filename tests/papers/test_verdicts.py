"""Verdicts and orders, with numbers worked out by hand."""

from __future__ import annotations

import pytest

from fedloom.papers.verdicts import judged, order, order_judged


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
    assert judged(ours, theirs).word == word


def test_reasons_win_and_rounds_are_never_near() -> None:
    assert judged([71.0, 72.0], 71.5, reason="another network").why == "another network"
    assert judged([5.0], 5.5, near=None).word == "not reproduced"
    assert "one seed, so no interval" in judged([71.0], 71.0).why
    assert judged([70.0, 71.0, 72.0], 73.0).why == "-2.00, inside 68.52 to 73.48 (3 seeds)"


def test_an_order_has_an_interval() -> None:
    # rho 1 counts as 1 - 6 / (5 * 24) = 0.95; atanh 1.831781, error sqrt(1.06 / 2) = 0.728011
    found = order([1, 2, 3, 4, 5], [10, 20, 30, 40, 50])
    assert found is not None
    assert (found.n, found.rho) == (5, pytest.approx(1.0))
    assert (found.low, found.high) == (pytest.approx(0.38421, abs=1e-4), pytest.approx(0.99705, abs=1e-4))
    assert order_judged(found).word == "order reproduced"
    # squared rank differences 1 + 1 + 0 + 0 + 1 + 1: rho = 1 - 6 * 4 / (6 * 35)
    mixed = order([1, 2, 3, 4, 5, 6], [2, 1, 3, 4, 6, 5])
    assert mixed is not None
    assert mixed.rho == pytest.approx(1 - 24 / 210)
    assert order_judged(order([1, 2, 3, 4, 5], [5, 4, 3, 2, 1])).word == "not reproduced"


def test_too_few_methods_have_no_order() -> None:
    # rho 1 of four counts as 0.9; atanh 1.4722 - 1.96 sqrt(1.06) < 0: no order of four could be reproduced
    assert order([1, 2, 3, 4], [1, 2, 3, 4]) is None
    assert order([1, 1, 1, 1, 1], [1, 2, 3, 4, 5]) is None
    assert order_judged(None).word == "not comparable"
