"""What a run costs before it runs: samples worked out by hand, speed from a trial."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from fedloom.config.run_config import parse
from fedloom.papers import cost as module
from fedloom.papers.cost import run_cost, study_cost
from fedloom.papers.recipe import find_recipe
from fedloom.papers.shapes import shape_of


def _tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of all trials that would be made; none is."""
    tried: list[str] = []

    def speed(keys: str, batch: int, shape: Any, most: int) -> module.Speed:
        tried.append(keys)
        return module.Speed(1e-3, 1e-4)

    monkeypatch.setattr(module, "_speed", speed)
    monkeypatch.setattr(module, "_known_speeds", {})
    return tried


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
    monkeypatch.setattr(module, "speed_of", lambda config, by_method: module.Speed(1e-3, 2e-4))
    found = run_cost(config(name, cell), by_method=False)
    assert found.trained == pytest.approx(trained, rel=0.01)
    assert found.tested == pytest.approx(tested, rel=0.01)
    assert found.seconds == pytest.approx(1e-3 * found.trained + 2e-4 * found.tested)


_DIGITS = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 2},
    "model": {"name": "mlp", "hidden": [16]},
}


def test_the_trial_is_the_speed_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TRIAL_SECONDS", 0.05)
    for by_method in (True, False):
        speed = module.speed_of(parse(_DIGITS), by_method)
        assert 1e-8 < speed.train < 1e-2
        assert 1e-8 < speed.test < 1e-2


def test_a_trial_runs_the_method_and_the_engine_of_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = _tried(monkeypatch)
    moon = {"method": "moon", "preset": "paper", "moon": {"mu": 3.0}, "local_epochs": 2}
    config = parse(_DIGITS | moon | {"engine": {"name": "processes", "kernels": "torch", "fast": False}})
    module.speed_of(config)
    trial = module._trial_config(tried[0], 3, 2)
    assert (trial.method, trial.preset, trial.local_epochs) == ("moon", "paper", 2)
    assert trial.resolved()["moon"] == config.resolved()["moon"]
    assert (trial.engine.name, trial.engine.kernels, trial.engine.fast) == ("serial", "torch", False)
    module.speed_of(config, by_method=False)
    plain = module._trial_config(tried[1], 3, 2)
    assert (plain.method, plain.local_epochs, plain.engine) == ("local", 1, trial.engine)


def test_what_a_method_does_beside_its_steps_is_in_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients, two local epochs, 20 samples each: seconds of a round belong to 80 samples; 40 are tested."""
    rows = [
        {"round": 3, "name": "seconds_train", "value": 8.0},
        {"round": 3, "name": "seconds_evaluate", "value": 1.0},
        {"round": 2, "name": "seconds_train", "value": 99.0},
    ]
    result = SimpleNamespace(rows=[row | {"split": "system", "client": None} for row in rows])
    monkeypatch.setattr(module, "run", lambda config, scenario: result)
    keys = json.dumps(module._method_keys(parse(_DIGITS | {"method": "feddw", "local_epochs": 2})))
    assert module._timed(keys, shape_of(parse(_DIGITS)), 2, 20) == (8.0, module.Speed(8 / 80, 1 / 40))


def test_clients_of_a_trial_are_no_larger_than_those_of_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def timed(keys: str, shape: Any, clients: int, size: int) -> tuple[float, module.Speed]:
        tried.append((clients, size))
        return 1e-3 * clients * size, module.Speed(1e-3, 1e-4)

    monkeypatch.setattr(module, "_timed", timed)
    keys = json.dumps(module._method_keys(parse(_DIGITS)))
    assert module._speed(keys, 64, shape_of(parse(_DIGITS)), 128).train == 1e-3
    assert tried == [(2, 16), (6, 128)]  # about a second
    tried.clear()
    module._speed(keys, 64, shape_of(parse(_DIGITS)), 2048)
    assert tried == [(2, 16), (2, 512)]


def test_a_trial_has_few_local_epochs() -> None:
    assert module._method_keys(parse(_DIGITS | {"method": "fedavg", "local_epochs": 50}))["local_epochs"] == 3


def test_one_trial_does_for_all_configs_of_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = _tried(monkeypatch)
    for name in ("fedssa/table1", "fedssa/table2"):  # 10 and 100 classes; 10, 50 and 100 clients; own options
        for cell in find_recipe(name).study().cells:
            assert module.speed_of(cell.config, by_method=False).train == 1e-3
    assert len(tried) == 4  # one net or five, with two views of an image or without


def test_seeds_of_a_cell_cost_the_same_and_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(module, "run_cost", lambda config, by_method: tried.append(config) or module.Cost(1, 1, 2.0))
    cells = find_recipe("feddw/table4").study().cells
    found = study_cost(cells)
    assert len(found) == len(cells) == 50
    assert len(tried) == 10
