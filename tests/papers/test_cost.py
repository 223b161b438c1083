"""What a run costs before it runs: samples worked out by hand, speed from a trial."""

from __future__ import annotations

from typing import Any

import pytest

from fedloom.papers import cost as module
from fedloom.papers.cost import cost, relative_flops, study_cost
from fedloom.papers.recipe import find
from fedloom.study.config import parse


def config(name: str, cell: str) -> Any:
    return find(name).study().chosen([cell])[0].config


@pytest.mark.parametrize(
    ("name", "cell", "trained", "tested"),
    [
        # 50 rounds, 10 clients, 6,000 samples on average, 5 epochs; 50 tests of 10,000
        ("feddw/table1", "mnist-practical/FedAvg/seed0", 15_000_000, 500_000),
        # half of the clients; every personal model on the whole test set
        ("feddw/table1", "mnist-pathological/Local/seed0", 7_500_000, 5_000_000),
        # 5 of 100 clients with 500 samples on average; 300 tests, each client on its own share, all together 10,000
        ("fedco2/table3", "cifar10-pathological/Fed-CO2/seed0", 1500 * 5 * 500 * 5, 300 * 10_000),
    ],
)
def test_samples_are_those_of_the_setting(
    monkeypatch: pytest.MonkeyPatch, name: str, cell: str, trained: int, tested: int
) -> None:
    monkeypatch.setattr(module, "seconds_per_sample", lambda config: 1e-3)
    found = cost(config(name, cell), by_method=False)
    assert found.trained == pytest.approx(trained, rel=0.01)
    assert found.tested == pytest.approx(tested, rel=0.01)
    assert found.seconds == pytest.approx(1e-3 * (found.trained + found.tested / 3))


def test_a_method_that_does_more_counts_more() -> None:
    keys = {
        "scenario": {"source": "digits", "partition": "iid", "clients": 2},
        "model": {"name": "mlp", "hidden": [16]},
    }
    assert relative_flops(parse(keys | {"method": "fedavg"})) == pytest.approx(1.0)
    # MOON: one pass with gradients (3 units) and two without (1 each), of the body that it contrasts
    assert 1.2 < relative_flops(parse(keys | {"method": "moon"})) < 2.0


def test_the_trial_is_the_speed_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRIAL", 0.05)
    keys = {
        "scenario": {"source": "digits", "partition": "iid", "clients": 2},
        "model": {"name": "mlp", "hidden": [16]},
    }
    assert 1e-8 < module.seconds_per_sample(parse(keys)) < 1e-2


def test_one_trial_does_for_all_configs_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr(module, "_speed", lambda plain, batch, shape: tried.append(plain) or 1e-3)
    monkeypatch.setattr(module, "_speeds", {})
    for name in ("fedssa/table1", "fedssa/table2"):  # 10 and 100 classes; 10, 50 and 100 clients; own options
        for cell in find(name).study().cells:
            assert module.seconds_per_sample(cell.config) == 1e-3
    assert len(tried) == 4  # one net or five, with two views of an image or without


def test_seeds_of_a_cell_cost_the_same_and_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(module, "cost", lambda config, by_method: tried.append(config) or module.Cost(1, 1, 2.0))
    cells = find("feddw/table4").study().cells
    found = study_cost(cells)
    assert len(found) == len(cells) == 50
    assert len(tried) == 10
