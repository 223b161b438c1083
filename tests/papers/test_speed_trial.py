"""The speed of a method or a network on this machine, from a short trial that is kept."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.papers import speed_trial as module
from fedloom.papers.recipe import find_recipe
from fedloom.papers.shapes import shape_of
from fedloom.papers.trial_federation import TrialFederation
from fedloom.runs.config.run_config import parse


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a process that has tried nothing yet."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_known_values", {})
    return tmp_path / "cache"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of all trials that would be made; none is."""
    keys_of_trials: list[str] = []

    def speed(keys: str, *_: Any, plain_steps: bool = False) -> module.Speed:
        keys_of_trials.append(keys)
        return module.Speed(1e-3, 1e-4)

    monkeypatch.setattr(module, "_speed", speed)
    return keys_of_trials


_DIGITS = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 2},
    "model": {"name": "mlp", "hidden": [16]},
}


def test_the_trial_is_the_speed_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_METHOD_SECONDS", 0.05)
    monkeypatch.setattr(module, "_NETWORK_SECONDS", 0.05)
    config = parse(_DIGITS | {"engine": {"name": "serial", "fast": False}})  # nothing is compiled
    for speed in (module.method_trial(config, 64), module.network_trial(config)):
        assert 1e-8 < speed.train < 1e-2
        assert 1e-8 < speed.test < 1e-2


def test_a_trial_runs_the_method_and_the_engine_of_its_config(trials: list[str]) -> None:
    moon = {"method": "moon", "preset": "paper", "moon": {"mu": 3.0}, "local_epochs": 2}
    config = parse(_DIGITS | moon | {"engine": {"name": "processes", "kernels": "torch", "fast": False}})
    module.method_trial(config, 64)
    trial = module._trial_config(trials[0], 3, 2)
    assert (trial.method, trial.preset, trial.local_epochs) == ("moon", "paper", 2)
    assert trial.resolved()["moon"] == config.resolved()["moon"]
    assert (trial.engine.name, trial.engine.kernels, trial.engine.fast) == ("serial", "torch", False)
    module.network_trial(config)
    plain = module._trial_config(trials[1], 3, 2)
    assert (plain.method, plain.local_epochs, plain.engine) == ("local", 1, trial.engine)


def fake_trials(monkeypatch: pytest.MonkeyPatch, rounds: Sequence[float], tests: Sequence[float]) -> None:
    """Trials whose rounds and tests take these CPU seconds, one after another."""

    class Trial(contextlib.AbstractContextManager["Trial"]):
        def __init__(self, config: Any, scenario: Any, *, plain_steps: bool) -> None:
            self.rounds, self.tests = iter(rounds), iter(tests)

        def __exit__(self, *_: object) -> None:
            pass

        def round_seconds(self) -> float:
            return next(self.rounds)

        def test_seconds(self) -> float:
            return next(self.tests)

    monkeypatch.setattr(module, "TrialFederation", Trial)


def test_what_a_method_does_beside_its_steps_is_in_its_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients, two local epochs, 20 samples each: seconds of a round belong to 80 samples; 40 are tested."""
    fake_trials(monkeypatch, [99.0, 99.0, 8.0], [1.0])
    keys = json.dumps(module._method_keys(parse(_DIGITS | {"method": "feddw", "local_epochs": 2})))
    assert module._timed(keys, shape_of(parse(_DIGITS)), 2, 20, False) == (8.0, module.Speed(8 / 80, 1 / 40))


def test_plain_steps_take_a_round_less_and_a_short_test_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client of 16 samples is tested on 16."""
    fake_trials(monkeypatch, [99.0, 0.4], [0.09, 0.08])
    keys = json.dumps(module._network_keys(parse(_DIGITS)))
    assert module._timed(keys, shape_of(parse(_DIGITS)), 1, 16, True) == (0.4, module.Speed(0.4 / 16, 0.08 / 16))


def test_clients_of_a_trial_are_no_larger_than_those_of_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def timed(keys: str, shape: Any, clients: int, size: int, plain_steps: bool) -> tuple[float, module.Speed]:
        tried.append((clients, size))
        return 1e-3 * clients * size, module.Speed(1e-3, 1e-4)

    monkeypatch.setattr(module, "_timed", timed)
    keys = json.dumps(module._method_keys(parse(_DIGITS)))
    assert module._speed(keys, 64, shape_of(parse(_DIGITS)), 128, 1.0).train == 1e-3
    assert tried == [(2, 16), (6, 128)]  # about a second
    tried.clear()
    module._speed(keys, 64, shape_of(parse(_DIGITS)), 2048, 1.0)
    assert tried == [(2, 16), (2, 512)]
    tried.clear()
    module._speed(keys, 64, shape_of(parse(_DIGITS)), 2048, 0.09)  # 32 samples take 0.032 s, which is enough
    assert tried == [(2, 16)]


def test_a_trial_does_not_grow_to_a_batch_that_would_take_far_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[int, int]] = []

    def timed(keys: str, shape: Any, clients: int, size: int, plain_steps: bool) -> tuple[float, module.Speed]:
        tried.append((clients, size))
        return 4e-3 * clients * size, module.Speed(4e-3, 1e-4)

    monkeypatch.setattr(module, "_timed", timed)
    keys = json.dumps(module._network_keys(parse(_DIGITS)))
    module._speed(keys, 512, shape_of(parse(_DIGITS)), 4096, 0.3)  # 32 samples take 0.13 s, two batches 4.1 s
    assert tried == [(2, 16)]


def test_operations_of_a_method_are_those_of_its_passes() -> None:
    """Ditto's clients train a personal model for one epoch beside the two, or five, of the shared one."""
    ditto = {"method": "ditto", "ditto": {"personal_epochs": 1}}
    assert module.method_operations(parse(_DIGITS)) == 1.0
    assert module.method_operations(parse(_DIGITS | ditto | {"local_epochs": 2})) == pytest.approx(3 / 2)
    assert module.method_operations(parse(_DIGITS | ditto | {"local_epochs": 5})) == pytest.approx(6 / 5)


def test_operations_are_counted_once_for_each_kind_of_config(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []

    def count(keys: str, shape: Any) -> float:
        counted.append(json.loads(keys)["method"])
        return 3.0 if counted[-1] == "ditto" else 2.0

    monkeypatch.setattr(module, "_counted_operations", count)
    for rounds in (5, 50):
        config = parse(_DIGITS | {"method": "ditto", "local_epochs": 1, "rounds": rounds})
        assert module.method_operations(config) == 1.5
        monkeypatch.setattr(module, "_known_values", {})  # as the next process begins
    assert counted == ["ditto", "local"]


def test_operations_are_counted_on_all_cores_unless_another_thread_may_have_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []

    def operations(trial: TrialFederation, local_epochs: int) -> float:
        threads.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr(module, "available_cores", lambda: 2)
    monkeypatch.setattr(TrialFederation, "operations", operations)
    keys = json.dumps(module._network_keys(parse(_DIGITS)))
    before = torch.get_num_threads()
    for active in (1, 2):
        monkeypatch.setattr(module.threading, "active_count", lambda count=active: count)
        module._counted_operations(keys, shape_of(parse(_DIGITS)))
    assert threads == [2, 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("step", "trials_made"), [(0.003, [True]), (0.002, [True, False])])
def test_steps_are_replayed_where_that_changes_the_speed(
    monkeypatch: pytest.MonkeyPatch, step: float, trials_made: list[bool]
) -> None:
    plain: list[bool] = []

    def speed(*_: Any, plain_steps: bool = False) -> module.Speed:
        plain.append(plain_steps)
        return module.Speed(step / 64, 1e-5)

    monkeypatch.setattr(module, "_speed", speed)
    module.network_trial(parse(_DIGITS | {"batch_size": 64}))
    assert plain == trials_made
    plain.clear()
    module.network_trial(parse(_DIGITS | {"batch_size": 64, "engine": {"name": "serial", "fast": False}}))
    assert plain == [True]


def test_a_trial_of_the_method_is_taken_where_one_is_kept(trials: list[str]) -> None:
    config = parse(_DIGITS | {"method": "ditto"})
    assert module.kept_method_trial(config, 64) is None
    speed = module.method_trial(config, 64)
    assert module.kept_method_trial(config, 64) == speed
    assert len(trials) == 1


def test_a_trial_has_few_local_epochs() -> None:
    assert module._method_keys(parse(_DIGITS | {"method": "fedavg", "local_epochs": 50}))["local_epochs"] == 3


def test_one_trial_does_for_all_configs_of_a_network(trials: list[str]) -> None:
    for name in ("fedssa/table1", "fedssa/table2"):  # 10 and 100 classes; 10, 50 and 100 clients; own options
        for cell in find_recipe(name).study().cells:
            assert module.network_trial(cell.config).train == 1e-3
    assert len(trials) == 4  # one net or five, with two views of an image or without


def test_a_speed_is_kept_for_the_next_process(trials: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = module.network_trial(parse(_DIGITS))
    monkeypatch.setattr(module, "_known_values", {})
    assert module.network_trial(parse(_DIGITS)) == first
    assert len(trials) == 1


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"train": 1}', '{"train": NaN, "test": 1}', '{"train": -1, "test": 1}']
)
def test_a_damaged_speed_is_measured_again(
    trials: list[str], monkeypatch: pytest.MonkeyPatch, cache: Path, text: str
) -> None:
    module.network_trial(parse(_DIGITS))
    (file,) = (cache / "trials").iterdir()
    file.write_text(text)
    monkeypatch.setattr(module, "_known_values", {})
    assert module.network_trial(parse(_DIGITS)) == module.Speed(1e-3, 1e-4)
    assert len(trials) == 2


def test_another_torch_is_tried_anew(trials: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    module.network_trial(parse(_DIGITS))
    monkeypatch.setattr(module, "_environment", lambda: {"versions": {"torch": "1.0"}})
    module.network_trial(parse(_DIGITS))
    assert len(trials) == 2


def test_a_cache_that_cannot_be_written_costs_time_alone(
    trials: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "file"))
    assert module.network_trial(parse(_DIGITS)).train == 1e-3
