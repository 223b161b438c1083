"""Numbers as people read them."""

import pytest

from fedloom.core.text import (
    bytes_text,
    counted,
    higher_is_better,
    is_share,
    listed,
    lists_by_key,
    plus_minus,
    seconds_text,
    unit,
    value_text,
    with_unit,
)
from fedloom.evaluation import METRICS


@pytest.mark.parametrize(
    ("value", "like", "text"),
    [
        (0, None, "0 B"),
        (999, None, "999 B"),
        (8_385_200, None, "8.39 MB"),
        (18_500_000, None, "18.5 MB"),
        (999_960_000, None, "1,000 MB"),
        (8_385_200, 120_000_000, "8 MB"),
        (1_000, 120_000_000, "1.00 kB"),
    ],
)
def test_bytes(value, like, text):
    assert bytes_text(value, like) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 s"), (1.798, "1.80 s"), (59.9, "59.9 s"), (754, "12.6 min"), (9000, "2.50 h")]
)
def test_seconds(value, text):
    assert seconds_text(value) == text


def test_plus_minus():
    assert plus_minus(0.98241, 0.0021) == "98.2 ± 0.2"
    assert plus_minus(0.98241, None) == "98.2"


def test_lists_and_counts():
    assert [listed(words) for words in ((), ("a",), ("a", "b"), ("a", "b", "c"))] == ["", "a", "a and b", "a, b and c"]
    assert (counted(1, "seed"), counted(3, "seed")) == ("1 seed", "3 seeds")


# the sum of squared errors over classes reaches 2; the others are coefficients
PLAIN = {"brier", "mcc", "calibration_slope", "calibration_intercept", "calibration_in_the_large"}


@pytest.mark.parametrize("name", METRICS.names())
def test_every_metric_has_a_unit_and_a_direction(name: str) -> None:
    assert (unit(name) != "") == (name not in PLAIN)
    assert higher_is_better(name) == METRICS.get(name).higher_is_better


def test_shares_are_read_in_percent_and_others_as_they_are_stored() -> None:
    assert value_text("balanced_accuracy", 0.73254) == "73.25 %"
    assert value_text("nll", 1.23456) == "1.2346 nats"
    assert value_text("brier", 0.5) == "0.5000"
    assert value_text("own_metric", None) == "–"
    assert is_share("accuracy/online")
    assert [with_unit(name) for name in ("auroc", "loss", "own_metric")] == ["auroc %", "loss nats", "own_metric"]


def test_lists_by_key_keep_the_order_of_keys_and_values() -> None:
    lists = lists_by_key([("b", 3), ("a", 1), ("b", 2)])
    assert list(lists.items()) == [("b", [3, 2]), ("a", [1])]
