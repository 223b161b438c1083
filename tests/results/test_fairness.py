"""Fairness over clients, beside golden numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedloom.results.comparison import Comparison
from fedloom.results.fairness import client_shares, fairness, fairness_rows
from fedloom.results.table import grouped
from toy_results import MakeResult

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "comparisons.json").read_text())["fairness"]
CASES = {name: case for name, case in GOLDEN.items() if isinstance(case, dict)}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_fairness_equals_the_golden_numbers(case: dict[str, Any]) -> None:
    measured = fairness(case["accuracy"])
    assert measured is not None
    for name in ("mean", "std", "worst10", "best10", "gap", "gap10", "jain"):
        assert getattr(measured, name) == (None if case[name] is None else pytest.approx(case[name], abs=1e-7))
    for name in ("local", "fedavg"):
        shares = client_shares(dict(enumerate(case["accuracy"])), dict(enumerate(case[name])))
        assert shares is not None
        expected = case[f"against_{name}"]
        assert [shares.worse, shares.equal, shares.better] == pytest.approx(
            [expected["worse"], expected["equal"], expected["better"]], abs=1e-7
        )


def test_jain_is_one_for_all_alike_and_a_share_for_one_alone() -> None:
    alone = fairness([0.8, 0.0, 0.0, 0.0])
    assert alone is not None
    assert alone.jain == pytest.approx(1 / 4)
    itself = client_shares({0: 0.5, 1: 0.7}, {0: 0.5, 1: 0.7})
    assert itself is not None
    assert itself.equal == 1
    assert fairness([]) is None
    assert client_shares({0: 0.5}, {1: 0.5}) is None


def runs(make_result: MakeResult) -> list[Any]:
    accuracies = {
        ("local", "personal/local"): (0.5, 0.6, 0.7, 0.8),
        ("fedavg", "global/local"): (0.4, 0.6, 0.9, 0.9),
        ("ditto", "personal/local"): (0.6, 0.5, 0.8, 0.9),
        ("fedprox", "global/global"): (),
    }
    return [
        make_result(method, seed, protocol=protocol, client_accuracies=values)
        for (method, protocol), values in accuracies.items()
        for seed in range(2)
    ]


def test_rows_are_compared_with_local_training_and_fedavg(make_result: MakeResult) -> None:
    rows = {row.label: row for row in fairness_rows(grouped(runs(make_result)))}
    assert set(rows) == {"local", "fedavg", "ditto"}
    ditto = rows["ditto"]
    assert ditto.against["Local"].worse == pytest.approx(1 / 4)
    assert (ditto.against["FedAvg"].worse, ditto.against["FedAvg"].equal) == pytest.approx((1 / 2, 1 / 4))
    assert set(rows["local"].against) == {"FedAvg"}
    assert (ditto.seeds, ditto.fairness.gap) == (2, pytest.approx(0.4))


def test_the_table_and_the_frame_of_clients(make_result: MakeResult) -> None:
    done = Comparison(runs(make_result))
    table = done.fairness_table()
    assert "worse than Local" in table.splitlines()[0]
    (row,) = [line for line in table.splitlines() if line.startswith("| ditto")]
    assert [cell.strip() for cell in row.split("|")[-3:-1]] == ["1 of 4", "2 of 4"]
    assert "worse_than_fedavg" in done.fairness_table("csv").splitlines()[0]
    frame = done.clients_to_pandas()
    assert len(frame) == 3 * 2 * 4
    worst = frame[(frame["label"] == "ditto") & (frame["seed"] == 0) & (frame["client"] == 1)].iloc[0]
    assert worst["accuracy"] == 0.5
