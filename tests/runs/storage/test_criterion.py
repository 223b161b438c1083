"""Rounds are selected by any metric."""

import math

from fedloom.core.text import Criterion
from fedloom.runs.storage.log import Row, accuracies, best_val, value_at_selected_round

LOWEST = Criterion("brier", -1)


def rows_of(**curves):
    return [
        Row(round=round_, client=None, split=split, protocol="global/global", name=name, value=value)
        for key, values in curves.items()
        for split, name in [key.split("_", 1)]
        for round_, value in enumerate(values, 1)
    ]


ROWS = rows_of(
    test_accuracy=[0.1, 0.3, 0.2],
    val_accuracy=[0.1, 0.2, 0.3],
    val_brier=[math.nan, 0.4, 0.5],
    test_brier=[0.3, 0.5, 0.6],
)


def test_the_lowest_value_selects_where_lower_is_better():
    assert best_val(ROWS) == (3, 0.3)
    assert best_val(ROWS, LOWEST) == (2, 0.4)
    assert accuracies(ROWS, 2, LOWEST) == {"last": 0.2, "best_val": 0.3, "best_test": 0.1, "mean_last_k": 0.25}
    assert value_at_selected_round(ROWS, "brier", "best_val", 2, LOWEST) == 0.5
    assert value_at_selected_round(ROWS, "brier", "best_val", 2) == 0.6
    assert value_at_selected_round(ROWS, "brier", "best_test", 2, LOWEST) == 0.3
    assert value_at_selected_round(ROWS, "brier", "last", 2, LOWEST) == 0.6


def test_no_validation_value_selects_no_round():
    assert best_val(rows_of(val_brier=[math.nan]), LOWEST) is None
    assert LOWEST.best([1, 2, 3], [0.5, 0.4, 0.4]) == 2


def test_a_metric_that_the_last_rounds_do_not_have_has_no_value_there() -> None:
    rows = [*ROWS, Row(round=1, client=None, split="test", protocol="global/global", name="auroc", value=0.9)]
    assert value_at_selected_round(rows, "auroc", "last", 2) is None
    assert value_at_selected_round(rows, "auroc", "mean_last_k", 2) is None
    assert value_at_selected_round(rows, "auroc", "mean_last_k", 3) == 0.9
