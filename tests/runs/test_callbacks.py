"""Callbacks see weights when they ask, and end runs; early stopping, also over a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedloom.config.run_config import parse
from fedloom.core.errors import ConfigError
from fedloom.results.result import Result
from fedloom.runs import run as run_module
from fedloom.runs.callbacks import Callback
from fedloom.runs.early_stopping import EarlyStopping
from fedloom.runs.run import run


def small(**changes: Any) -> Any:
    scenario = {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4}
    values = {"scenario": scenario, "rounds": 6, "local_epochs": 1, "checkpoint": {"seconds": 0}, "engine": "serial"}
    return parse(values | changes)


def val(round_: int, value: float, name: str = "accuracy") -> Any:
    return {"round": round_, "client": None, "split": "val", "protocol": "global/global", "name": name, "value": value}


class Stop(Callback):
    """Ends the run after a round, or kills it there."""

    def __init__(self, after: int, killed: bool = False) -> None:
        self.after, self.killed, self.seen = after, killed, list[int]()

    def on_round(self, config: Any, round_: int, rows: Any) -> str | None:
        self.seen.append(round_)
        if self.killed and round_ == self.after:
            raise ConnectionError("power cut")
        return "enough" if round_ == self.after else None


class Look(Callback):
    """Keeps what it sees of the weights after each round."""

    def __init__(self, client: int | None = None) -> None:
        self.client, self.seen = client, list[Any]()

    def on_weights(self, config: Any, round_: int, weights: Any) -> None:
        self.seen.append(weights() if self.client is None else weights(self.client))


# -- stopping ----------------------------------------------------------------------------------------------------------
def test_a_stopped_run_is_a_finished_one_with_the_first_rounds_of_a_whole_one(tmp_path: Path) -> None:
    whole = run(small())
    stopped = run(small(), out=tmp_path, callbacks=[Stop(3)])
    assert stopped.numbers["stopped"] == {"round": 3, "reason": "enough"}
    assert stopped.numbers["rounds"] == 3
    assert whole.numbers["stopped"] is None
    assert [values[:3] for values in whole.curve()] == list(stopped.curve())
    assert stopped.numbers["accuracy"] == whole.curve()[1][2]
    again = run(small(), out=tmp_path, existing="resume", callbacks=[watch := Stop(5)])
    assert again.numbers == stopped.numbers
    assert watch.seen == []
    assert json.loads((tmp_path / "summary.json").read_text())["stopped"]["round"] == 3


def test_a_round_without_a_test_is_tested_when_the_run_stops_there(tmp_path: Path) -> None:
    whole = run(small(rounds=3))
    stopped = run(small(evaluation={"every": 6}), out=tmp_path, callbacks=[Stop(3)])
    assert stopped.curve() == ([3], [whole.curve()[1][2]])
    saved = sorted(path.name for path in (tmp_path / "checkpoint").iterdir())
    assert saved[-1] == "round-000003"


def test_all_callbacks_see_the_last_round_and_its_end() -> None:
    ends = []

    class End(Stop):
        def on_end(self, config: Any, result: Result) -> None:
            ends.append(result.numbers["stopped"]["round"])

    first, second = End(2), End(4)
    run(small(), callbacks=[first, second])
    assert (first.seen, second.seen, ends) == ([1, 2], [1, 2], [2, 2])


def test_an_error_at_the_end_keeps_no_callback_from_its_own(tmp_path: Path) -> None:
    ended = []

    class Fails(Stop):
        def on_end(self, config: Any, result: Result) -> None:
            ended.append(self.after)
            raise ConnectionError(f"tracker {self.after} is away")

    with pytest.raises(ConnectionError, match="tracker 7 is away") as caught:
        run(small(rounds=1), out=tmp_path, callbacks=[Fails(7), Fails(8)])
    assert ended == [7, 8]
    assert "tracker 8 is away" in caught.value.__notes__[0]
    assert run(small(rounds=1), out=tmp_path).numbers["rounds"] == 1  # it is stored


def test_the_last_round_cannot_be_stopped_at() -> None:
    assert run(small(rounds=2), callbacks=[Stop(2)]).numbers["stopped"] is None


def test_what_trains_after_the_last_round_cannot_be_stopped(monkeypatch: Any) -> None:
    from fedloom.methods import METHODS

    fedavg = METHODS.get("fedavg")
    monkeypatch.setattr(fedavg, "closing", lambda self: self)
    with pytest.raises(ConfigError, match="cannot be stopped early"):
        run(small(), callbacks=[Stop(1)])
    with pytest.raises(ConfigError, match="early_stopping: fedavg trains once more after its last round"):
        run(small(early_stopping={}))


# -- early stopping ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("how", "values", "stops"),
    [
        ({"patience": 2}, (0.1, 0.5, 0.5, 0.4), 4),  # equal is no improvement
        ({"patience": 2}, (0.1, 0.5, 0.4, 0.6, 0.5), None),
        ({"patience": 2, "min_delta": 0.1}, (0.1, 0.5, 0.55, 0.6), 4),
        ({"patience": 1, "min_delta": 0.0}, (0.1, 0.1), 2),
        ({"patience": 2, "measure": "loss"}, (2.0, 1.0, 1.5, float("nan")), 4),
        ({"patience": 2, "measure": "loss"}, (float("nan"), float("inf")), 2),
    ],
)
def test_patience_counts_tests_without_improvement(how: Any, values: Any, stops: int | None) -> None:
    stopping, config = EarlyStopping(**how), small()
    name = how.get("measure", "accuracy")
    said = [stopping.on_round(config, k, [val(k, value, name)]) for k, value in enumerate(values, start=1)]
    assert next((k for k, reason in enumerate(said, start=1) if reason), None) == stops


def test_the_reason_names_measure_best_round_and_patience() -> None:
    reason = EarlyStopping(2).on_round(small(), 3, [val(1, 0.25), val(2, 0.25), val(3, 0.2)])
    assert reason == "validation accuracy has not risen above 0.2500 of round 1 in 2 tests"


def test_as_a_key_it_stops_where_validation_says_and_again_after_a_crash(tmp_path: Path) -> None:
    key = {"early_stopping": {"patience": 1, "min_delta": 0.2}}
    whole = run(small(**key), out=tmp_path / "whole")
    told = whole.numbers["stopped"]
    _, values = whole.curve("accuracy", "val")
    expected = next(k for k in range(1, 6) if values[k] <= max(values[:k]) + 0.2) + 1
    assert told["round"] == expected < 6
    for after in range(1, expected + 1):  # also in the very round that ends it, after its checkpoint
        folder = tmp_path / f"cut-{after}"
        with pytest.raises(ConnectionError):
            run(small(**key), out=folder, callbacks=[Stop(after, killed=True)])
        resumed = run(small(**key), out=folder, existing="resume")
        assert resumed.numbers["stopped"] == told
        assert resumed.numbers["checkpoint_sha256"] == whole.numbers["checkpoint_sha256"]
        assert resumed.curve() == whole.curve()


def test_one_object_may_watch_one_run_after_another() -> None:
    stop = EarlyStopping(patience=1, min_delta=1.0)
    assert [run(small(seed=seed), callbacks=[stop]).numbers["stopped"]["round"] for seed in (0, 1)] == [2, 2]


def test_the_key_is_part_of_what_a_run_is_and_absent_unless_given() -> None:
    assert "early_stopping" not in small().resolved()
    assert small(early_stopping={}).resolved()["early_stopping"]["patience"] == 10
    assert small(early_stopping={}).fingerprint() != small().fingerprint()


@pytest.mark.parametrize("how", [{"patience": 0}, {"min_delta": -1.0}, {"measure": "f1"}, {"min_delta": float("inf")}])
def test_values_out_of_range_are_refused(how: Any) -> None:
    with pytest.raises(ConfigError, match=f"early_stopping.{next(iter(how))} = "):
        EarlyStopping(**how)
    with pytest.raises(ConfigError, match=f"early_stopping.{next(iter(how))} = "):
        small(early_stopping=how)


def test_without_validation_data_it_is_refused_before_training(monkeypatch: Any) -> None:
    scenario = {"source": "digits", "partition": "iid", "clients": 2, "val": 0}
    with pytest.raises(ConfigError, match="there is no validation data"):
        run(small(scenario=scenario), callbacks=[EarlyStopping()])
    monkeypatch.setattr(run_module._Run, "_train_round", lambda self: pytest.fail("trained"))
    with pytest.raises(ConfigError, match="there is no validation data"):
        run(small(scenario=scenario, early_stopping={}))


# -- weights -----------------------------------------------------------------------------------------------------------
def test_weights_are_copies_of_those_that_are_tested() -> None:
    whole = run(small(rounds=2))
    look = Look()

    class Spoil(Look):
        def on_weights(self, config: Any, round_: int, weights: Any) -> None:
            for value in weights().values():
                value.zero_()

    looked = run(small(rounds=2), callbacks=[look, Spoil()])
    assert looked.curve() == whole.curve()
    first, second = look.seen
    assert first.keys() == second.keys()
    assert not all(torch.equal(first[name], second[name]) for name in first)
    assert not any(value.requires_grad or value.abs().sum() == 0 for value in first.values())


def test_weights_of_a_client_are_its_own() -> None:
    looks = [Look(client) for client in range(2)]
    config = small(rounds=1, method="local", evaluation={"protocol": "personal/global"})
    run(config, callbacks=looks)
    (one,), (other,) = looks[0].seen, looks[1].seen
    assert not all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("client", "says"), [(9, "clients are 0 to 3"), (0, "fedavg has no personal model")])
def test_weights_that_do_not_exist_are_refused(client: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        run(small(rounds=1), callbacks=[Look(client)])


def test_nothing_is_copied_unless_asked(monkeypatch: Any) -> None:
    monkeypatch.setattr(run_module, "copy_weights", lambda *a: pytest.fail("copied"))
    run(small(rounds=1), callbacks=[Callback()])
