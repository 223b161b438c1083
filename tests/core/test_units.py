"""Every metric states its unit, and which way is better, as its class does."""

import pytest

from fedloom.core.text import higher_is_better, is_share, unit, value_text, with_unit
from fedloom.evaluation import METRICS

PLAIN = {"brier"}  # the sum of squared errors over classes reaches 2


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
