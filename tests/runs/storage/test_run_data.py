"""Whether a summary belongs to the rows of its run, and which rounds a metric selects."""

import math
from typing import Any

import pytest

from fedloom.core.text import Criterion
from fedloom.results.table import has_diverged
from fedloom.runs.storage.log import Row, accuracies, best_val, value_at_selected_round
from fedloom.runs.storage.run_data import _summary_fits_rows
from toy_results import MakeResult

ACCURACIES, LOSSES = (0.6, 0.8, 0.7), (0.9, 0.8, 0.5)  # the best round by loss is not that by accuracy


def row(round_: int, name: str, value: float, split: str = "test") -> dict[str, Any]:
    return {"round": round_, "split": split, "protocol": "global/global", "name": name, "value": value, "client": None}


@pytest.mark.parametrize(
    ("select_by", "best", "fits"),
    [("accuracy", 0.8, True), ("accuracy", 0.7, False), ("loss", 0.7, True), ("loss", 0.75, False)],
)
def test_the_best_accuracy_is_that_of_the_round_which_the_measure_selects(
    select_by: str, best: float, fits: bool
) -> None:
    rows = [row(k + 1, "accuracy", value) for k, value in enumerate(ACCURACIES)]
    rows += [row(k + 1, "loss", value) for k, value in enumerate(LOSSES)]
    rows += [row(k, name, 1.0, "system") for k in (1, 2, 3) for name in ("bytes_up", "bytes_down")]
    numbers = {"last_accuracy": 0.7, "best_test_accuracy": best, "bytes_up": 3, "bytes_down": 3}
    assert _summary_fits_rows(numbers, rows, select_by) == fits


def test_a_run_whose_loss_is_never_a_number_has_the_accuracy_of_its_last_round() -> None:
    rows = [row(k + 1, "accuracy", value) for k, value in enumerate(ACCURACIES)]
    rows += [row(k, "loss", math.nan, split) for k in (1, 2, 3) for split in ("test", "val")]
    by_selection = accuracies(rows, 1, Criterion("loss", -1))
    assert (by_selection["best_val"], by_selection["best_test"]) == (0.7, 0.7)
    without_validation = [entry for entry in rows if entry["split"] == "test"]
    assert accuracies(without_validation, 1, Criterion("loss", -1))["best_val"] is None


@pytest.mark.parametrize(("sign", "accuracy"), [(1, 0.6), (-1, 0.7)])
def test_the_selected_round_by_the_measure_of_a_plug_in_is_that_of_the_run_s_accuracy(
    sign: int, accuracy: float, make_result: MakeResult
) -> None:
    """No folder says whether its highest value is the best."""
    evaluation = {"protocol": "global/global", "select_by": "mine"}
    result = make_result(accuracies=ACCURACIES, select="best_test", config={"evaluation": evaluation})
    result.rows.extend(row(k + 1, "mine", value) for k, value in enumerate(LOSSES))  # type: ignore[arg-type]
    result.numbers["accuracy"] = accuracy
    assert result.selected_rounds() == [1 if sign == 1 else 3]


def test_a_training_that_diverged_concerns_every_protocol(make_result: MakeResult) -> None:
    notes = [
        "diverged: in round 1 the losses of 1 of 2 participants are not finite",
        "global/global: not above",
        "other",
    ]
    further = {"global/global": {}, "personal/local": {}}
    result = make_result("ditto", degenerate=notes, protocols=further)
    assert result.in_protocol("personal/local").numbers["degenerate"] == notes[:1]
    assert result.in_protocol("global/global").numbers["degenerate"] == notes
    assert has_diverged(result.in_protocol("personal/local").numbers)


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
