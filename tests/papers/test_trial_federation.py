"""A federation of a trial: its seconds are those of the processor, and its operations those of the passes."""

from __future__ import annotations

import time
from typing import Any

import pytest

from fedloom.engine.fast.torch_library import replay_library
from fedloom.papers.trial_federation import TrialFederation
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.protocol_tests import ProtocolTests

_KEYS = {
    "scenario": {"source": "digits", "partition": "iid", "clients": 2},
    "model": {"name": "mlp", "hidden": [16]},
    "rounds": 2,
    "engine": "serial",
}


def federation_of(config: RunConfig, **how: Any) -> TrialFederation:
    return TrialFederation(config, config.scenario.build(0), **how)


def test_seconds_are_those_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine takes longer on the clock, and foresees what an idle one does."""
    seconds = iter([1.0, 9.0, 20.0, 21.5])
    with federation_of(parse(_KEYS)) as trial, monkeypatch.context() as patch:
        patch.setattr(trial.federation, "step", lambda: None)
        patch.setattr(ProtocolTests, "rows", lambda *_: [])
        patch.setattr(time, "process_time", lambda: next(seconds))
        assert (trial.round_seconds(), trial.test_seconds()) == (8.0, 1.5)


def test_operations_are_those_of_a_hand_count() -> None:
    """An MLP 64-16-10 takes 2 operations for each weight forward, and as many for each weight's and each hidden value's
    gradient; none for the gradient of the pixels."""
    once = 2 * (64 * 16 + 16 * 10)
    backward = once + 2 * 16 * 10
    with federation_of(parse(_KEYS)) as trial:
        trial.round_seconds()
        assert trial.operations(local_epochs=1) == once + backward
        assert trial.operations(local_epochs=5) == 5 * (once + backward)


def test_each_architecture_is_counted() -> None:
    nets = [{"name": "mlp", "hidden": [16]}, {"name": "mlp", "hidden": [32]}]
    counts = []
    for model in (nets[0], nets[1], nets):
        local = {"model": model, "method": "local", "evaluation": {"protocol": "personal/local"}}
        with federation_of(parse(_KEYS | local)) as trial:
            trial.round_seconds()
            counts.append(trial.operations(1))
    assert counts[0] + counts[1] == counts[2]


def test_plain_steps_compile_nothing_and_test_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(replay_library(), "start", refuse)
    config = parse(_KEYS | {"model": "digits-cnn"})
    with federation_of(config, plain_steps=True) as trial:
        trial.round_seconds()
        assert trial.worker.loaded_nets[0].net.test_context is not None


def test_a_closing_round_is_no_part_of_a_trial() -> None:
    with federation_of(parse(_KEYS | {"method": "ccvr"})) as trial:
        reports = [trial.federation.step() for _ in range(2)]
    assert not any(report.closing_samples_by_group for report in reports)
