"""The estimated cost of a run: samples worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from fedloom.papers import cost as module
from fedloom.papers.cost import run_cost, study_cost
from fedloom.papers.recipe import find_recipe
from fedloom.papers.speed_trial import Speed
from fedloom.runs.config.run_config import parse


def config(name: str, cell: str) -> Any:
    return find_recipe(name).study().chosen([cell])[0].config


@pytest.mark.parametrize(
    ("name", "cell", "trained", "tested"),
    [
        # 50 rounds, 10 clients, 6,000 samples on average, 5 epochs; 50 tests of 10,000
        ("feddw/table1", "mnist-practical/FedAvg/seed0", 15_000_000, 500_000),
        # half of the clients; every personal model on the whole test set
        ("feddw/table1", "mnist-pathological/Local/seed0", 7_500_000, 5_000_000),
        # 5 of 100 clients with 500 samples on average; 300 tests, each client on its own share, all together 10,000
        ("fedco2/table3", "cifar10-pathological/Fed-CO2/seed0", 1500 * 5 * 500 * 5, 300 * 10_000),
        # 500 rounds, 10 of 50 clients with four fifths of 60,000 images, 10 epochs; a tenth each: tests, validation
        ("fedssa/table4", "cifar10-50-clients/C*/seed0", 500 * 10 * 960 * 10, 500 * 12_000),
    ],
)
def test_samples_are_those_of_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, cell: str, trained: int, tested: int
) -> None:
    monkeypatch.setattr(module, "network_trial", lambda config: Speed(1e-3, 2e-4))
    found = run_cost(config(name, cell), "network")
    assert found.trained == pytest.approx(trained, rel=0.01)
    assert found.tested == pytest.approx(tested, rel=0.01)
    assert found.seconds == pytest.approx(1e-3 * found.trained + 2e-4 * found.tested)


def test_seeds_of_a_cell_cost_the_same_and_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(
        module, "run_cost", lambda config, by, operations: tried.append(config) or module.Cost(1, 1, 2.0)
    )
    cells = find_recipe("feddw/table4").study().cells
    found = study_cost(cells)
    assert len(found) == len(cells) == 50
    assert len(tried) == 10


def test_several_protocols_are_all_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "network_trial", lambda config: Speed(1e-3, 2e-4))
    scenario = {"source": "digits", "partition": "iid", "clients": 4, "val": 0.0}
    plain = {"method": "ditto", "model": "mlp", "rounds": 10, "scenario": scenario}
    one, both = (
        run_cost(parse({**plain, "evaluation": {"protocols": protocols}}), "network")
        for protocols in (["global/global"], ["global/global", "personal/local", "personal/others"])
    )
    assert both.trained == one.trained
    assert both.tested == pytest.approx(one.tested * (1 + 1 + 3), rel=0.01)


def test_operations_are_counted_once_a_method_on_its_fastest_network(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []

    def operations(config: Any) -> float:
        counted.append((config.method, config.model_name()))
        return 2.0

    fast = "feddw-mnist-cnn"
    speed = lambda config: Speed(1e-3 if config.model_name() == fast else 1e-2, 1e-4)  # noqa: E731
    monkeypatch.setattr(module, "network_trial", speed)
    monkeypatch.setattr(module, "method_operations", operations)
    monkeypatch.setattr(module, "kept_method_trial", lambda config, size: Speed(5e-3, 0.0) if size < 3000 else None)
    chosen = find_recipe("feddw/table1").study().chosen(["*-practical/FedDW", "*-practical/FedAvg"])
    found = study_cost(chosen, "operations")
    assert sorted(counted) == [("fedavg", fast), ("feddw", fast)]
    cost = found["cifar10-practical/FedDW/seed0"]
    assert cost.seconds == pytest.approx(2 * 1e-2 * cost.trained + 1e-4 * cost.tested)
    kept = found["imdb-practical/FedDW/seed0"]  # of 2,500 samples a client, whose method was tried before
    assert kept.seconds == pytest.approx(5e-3 * kept.trained)
