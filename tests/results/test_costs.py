"""Milliseconds of a local epoch, alone and beside FedAvg's, from rows made by hand."""

import csv

import pytest

from fedloom.results.comparison import Comparison
from fedloom.results.result import Result
from fedloom.results.result_tables import costs, epoch_ms
from fedloom.results.table import grouped
from fedloom.runs.storage.log import Row
from toy_results import MakeResult


def timed(result: Result, seconds: float, participants: int = 5, local_epochs: int = 2, rounds: int = 3) -> Result:
    for now in range(1, rounds + 1):
        for name, value in (("seconds_train", seconds), ("participants", participants)):
            result.rows.append(Row(round=now, client=None, split="system", protocol=None, name=name, value=value))
    result.config["local_epochs"] = local_epochs
    return result


def test_an_epoch_is_training_over_participants_and_epochs(make_result: MakeResult) -> None:
    assert epoch_ms(timed(make_result(), 4.0)) == pytest.approx(1000 * 4.0 / (5 * 2))
    assert epoch_ms(timed(make_result(), 4.0, participants=0)) is None


def test_a_method_is_compared_with_fedavg_in_its_own_setting(make_result: MakeResult) -> None:
    def run(method: str, alpha: float, seed: int, seconds: float) -> Result:
        return timed(make_result(method, seed, config={"scenario": {"source": "toy", "alpha": alpha}}), seconds)

    runs = [run("fedavg", 0.1, 0, 1.0), run("fedavg", 0.5, 0, 4.0)]
    runs += [run("moon", 0.5, seed, seconds) for seed, seconds in ((0, 5.0), (1, 7.0))]
    found = costs(grouped(runs))
    assert [one.relative for one in found] == pytest.approx([1.0, 1.0, 1.5])
    assert (found[2].epoch_ms, found[2].epoch_ms_std) == pytest.approx((600.0, 2**0.5 * 100))
    rows = list(csv.DictReader(Comparison(runs).cost_table("csv").splitlines()))
    assert float(rows[2]["relative"]) == pytest.approx(1.5)
    assert "600.0 ± 141.4 |" in Comparison(runs).cost_table()
    alone = Comparison(runs[2:])
    assert "600.0 ± 141.4 |          – |" in alone.cost_table()
