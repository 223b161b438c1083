"""Average ranks over settings: worked out by hand."""

from dataclasses import replace

import pytest

from fedloom.results.best_rows import average_ranks
from fedloom.results.table import result_table
from toy_results import MakeResult

ORDERS = ((0.5, 0.6, 0.7), (0.5, 0.6, 0.7), (0.5, 0.7, 0.6), (0.6, 0.5, 0.7), (0.5, 0.6, 0.6))


def rows_of(make_result: MakeResult, settings: int):
    runs = []
    for k, accuracies in enumerate(ORDERS[:settings]):
        for method, accuracy in zip(("fedavg", "fedsc", "moon"), accuracies, strict=True):
            run = make_result(method, 0, [accuracy], config={"rounds": k + 1})
            runs.append(replace(run, cell=(f"setting {k}", method)))
    return result_table(runs)


def test_ranks_are_averaged_over_settings(make_result: MakeResult) -> None:
    (average,) = average_ranks(rows_of(make_result, 5))
    assert average.ranks == pytest.approx({"moon": 6.5 / 5, "fedsc": 9.5 / 5, "fedavg": 14 / 5})
    # Demsar 2006: q 2.343 for three methods, times sqrt(3 * 4 / (6 * 5))
    assert average.critical == pytest.approx(2.343 * (12 / 30) ** 0.5, abs=2e-3)
    assert average.cliques == [pytest.approx((1.3, 1.9)), pytest.approx((1.9, 2.8))]  # 1.5 apart is too far


def test_fewer_than_five_settings_are_not_tested(make_result: MakeResult) -> None:
    (average,) = average_ranks(rows_of(make_result, 4))
    assert (average.critical, average.cliques) == (None, [])
    assert average_ranks(rows_of(make_result, 1)) == []


def test_a_method_that_some_setting_lacks_is_left_out(make_result: MakeResult) -> None:
    rows = [row for row in rows_of(make_result, 5) if row["cell"] != ("setting 1", "moon")]
    assert average_ranks(rows) == []


def test_a_setting_of_a_single_method_ranks_nothing_and_one_under_a_second_name_counts_once(
    make_result: MakeResult,
) -> None:
    rows = rows_of(make_result, 5)
    alone = [{**row, "cell": ("alone", "moon"), "setting": {"rounds": "99"}} for row in rows[2:3]]
    again = [{**row, "cell": ("again", row["method"])} for row in rows[:3]]
    assert average_ranks([*rows, *alone]) == average_ranks([*rows, *again]) == average_ranks(rows)
