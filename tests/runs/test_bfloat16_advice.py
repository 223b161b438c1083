"""Advice on bfloat16: only in a long run, only where it was measured to help, and without a trace in the numbers."""

from typing import Any

import pytest
import torch

import fedloom.runs.setup as module
from fedloom.core.trees import clone
from fedloom.methods.fedavg import FedAvg
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.run import run
from fedloom.runs.setup import bfloat16_advice, has_bfloat16, step_seconds
from support import Notes, TinyBN, world

LONG = 1000.0  # seconds of a round


def config(**changes: Any) -> RunConfig:
    scenario = {"source": "digits", "partition": "iid", "clients": 4}
    return parse(
        {"method": "fedavg", "scenario": scenario, "rounds": 2, "local_epochs": 1, "engine": "serial"} | changes
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of a step in float32 and in bfloat16, which tests may change."""
    seconds = [0.3, 0.1]
    monkeypatch.setattr(module, "has_bfloat16", lambda: True)
    monkeypatch.setattr(module, "step_seconds", lambda worker: tuple(seconds))
    return seconds


def test_a_long_run_is_told_what_was_measured(measured: list[float]) -> None:
    toy = world(FedAvg(), [[0, 1]])
    advice = bfloat16_advice(config(), toy.worker, 1, LONG)
    assert advice == (
        "precision = bfloat16 would train this network about 3.0 times as fast on this processor (measured: a step of "
        "32 samples takes 300 ms, in bfloat16 100 ms); it changes the results"
    )


@pytest.mark.parametrize(
    ("round_", "seconds", "changes"),
    [
        (1, 1.0, {}),  # a short run
        (2, LONG, {}),  # said after the first round
        (1, LONG, {"rounds": 1}),
        (1, LONG, {"precision": "bfloat16"}),
    ],
)
def test_others_are_not(measured: list[float], round_: int, seconds: float, changes: dict[str, Any]) -> None:
    assert bfloat16_advice(config(**changes), world(FedAvg(), [[0, 1]]).worker, round_, seconds) is None


def test_the_seconds_of_a_step_are_those_between_its_beginning_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that shows 100 s at first; a step takes 2 s in float32 and 1 s in bfloat16."""
    clock = [100.0]
    monkeypatch.setattr(module.time, "thread_time", lambda: clock[0])

    def step(net: Any, x: Any, half: bool) -> None:
        clock[0] += 1.0 if half else 2.0

    monkeypatch.setattr(module, "_step", step)
    assert step_seconds(world(FedAvg(), [[0, 1]]).worker) == (2.0, 1.0)


def test_nothing_is_said_where_it_hardly_helps_or_the_processor_lacks_it(
    measured: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = world(FedAvg(), [[0, 1]])
    measured[1] = 0.25
    assert bfloat16_advice(config(), toy.worker, 1, LONG) is None
    measured[1] = 0.1
    monkeypatch.setattr(module, "has_bfloat16", lambda: False)
    assert bfloat16_advice(config(), toy.worker, 1, LONG) is None


def test_a_net_that_bfloat16_cannot_train_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spectral(TinyBN):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.in_bfloat16:
                raise RuntimeError("Unsupported dtype BFloat16")
            return super().forward(x)

    monkeypatch.setattr(module, "has_bfloat16", lambda: True)
    toy = world(FedAvg(), [[0, 1, 2]], net=Spectral)
    assert bfloat16_advice(config(), toy.worker, 1, LONG) is None


def test_torch_versions_that_do_not_tell_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True}, raising=False)
    assert has_bfloat16()
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not has_bfloat16()


def test_the_measurement_changes_nothing() -> None:
    toy = world(FedAvg(), [[0, 1, 2]], net=TinyBN)
    before, generator = clone(toy.worker.loaded_nets[0].tree), torch.get_rng_state()
    plain, half = step_seconds(toy.worker)
    assert plain > 0
    assert half > 0
    assert all(torch.equal(before[name], value) for name, value in toy.worker.loaded_nets[0].tree.items())
    assert not toy.worker.loaded_nets[0].net.in_bfloat16
    assert torch.equal(generator, torch.get_rng_state())


def test_a_run_says_it_once_with_the_same_weights(measured: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = run(config())
    monkeypatch.setattr(module, "_WORTH_SECONDS", 0.0)
    watch = Notes()
    advised = run(config(), callbacks=[watch])
    assert sum("bfloat16" in note for note in watch.texts) == 1
    assert [r for r in advised.rows if not r["name"].startswith("seconds")] == [
        r for r in quiet.rows if not r["name"].startswith("seconds")
    ]
