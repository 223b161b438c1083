"""Callbacks see weights when they ask, and end runs; early stopping, also over a crash."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.results.result import Result
from fedloom.runs import run as run_module
from fedloom.runs.callbacks import Callback, CallbackMeasures, EarlyStopping
from fedloom.runs.config.run_config import parse
from fedloom.runs.run import run
from fedloom.runs.storage.log import new_row
from fedloom.runs.studies.plan import parse_study
from fedloom.runs.studies.run_study import compare, run_study
from fedloom.runs.studies.study_folder import StudyFolder
from fedloom.runs.trackers import measures
from head_norm import HeadNorm


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


# -- measures ----------------------------------------------------------------------------------------------------------
class Measure(Callback):
    """Returns what a function of the round gives."""

    def __init__(self, measures: Any = lambda round_: {"twice": 2 * round_}) -> None:
        self.measures = measures

    def on_measure(self, config: Any, round_: int, rows: Any, weights: Any) -> Any:
        return self.measures(round_)


class Rows(Callback):
    """Keeps the rows of each round."""

    def __init__(self) -> None:
        self.seen = list[Any]()

    def on_round(self, config: Any, round_: int, rows: Any) -> None:
        self.seen += rows


def test_measures_are_rows_of_the_log_and_change_no_number(tmp_path: Path) -> None:
    plain = run(small(rounds=3))
    watch, look = Rows(), Look()
    result = run(small(rounds=3), out=tmp_path, callbacks=[watch, HeadNorm(), Measure(), look])
    rounds, norms = result.curve("head_norm", "callback")
    assert rounds == [1, 2, 3]
    assert norms == [float(weights["head.weight"].norm()) for weights in look.seen]
    assert result.curve("twice", "callback") == ([1, 2, 3], [2.0, 4.0, 6.0])
    assert result.curve() == plain.curve()
    timed = {"seconds", "samples_per_second", "peak_memory_mb", "run_dir", "checkpoint_sha256"}
    assert {k: v for k, v in result.numbers.items() if k not in timed} == {
        k: v for k, v in plain.numbers.items() if k not in timed
    }
    assert [measures(watch.seen)[f"callback/{name}"] for name in ("head_norm", "twice")] == [norms[-1], 6.0]
    stored = Result.read(tmp_path)
    assert stored is not None
    frame = stored.to_frame()
    assert list(frame[frame["name"] == "head_norm"]["value"]) == norms
    assert stored.curve("head_norm", "callback") == (rounds, norms)


@pytest.mark.parametrize(("after", "every"), [(1, 0), (2, 0), (2, 100), (3, 100)])
def test_a_resumed_run_has_each_measure_once(tmp_path: Path, after: int, every: int) -> None:
    config = small(rounds=3, checkpoint={"seconds": every})
    whole = run(config, callbacks=[HeadNorm()])
    with pytest.raises(ConnectionError):
        run(config, out=tmp_path, callbacks=[HeadNorm(), Stop(after, killed=True)])
    result = run(config, out=tmp_path, existing="resume", callbacks=[HeadNorm()])
    assert result.curve("head_norm", "callback") == whole.curve("head_norm", "callback")


def test_a_run_that_dies_while_measuring_loses_no_measure(tmp_path: Path) -> None:
    def dies(round_: int) -> Any:
        if round_ == 2:
            raise ConnectionError("power cut")
        return {"twice": 2.0 * round_}

    with pytest.raises(ConnectionError):
        run(small(rounds=3), out=tmp_path, callbacks=[HeadNorm(), Measure(dies)])
    result = run(small(rounds=3), out=tmp_path, existing="resume", callbacks=[HeadNorm(), Measure()])
    assert result.curve("twice", "callback") == ([1, 2, 3], [2.0, 4.0, 6.0])
    assert result.curve("head_norm", "callback")[0] == [1, 2, 3]


def test_a_stopped_run_has_the_measures_of_its_last_round(tmp_path: Path) -> None:
    result = run(small(evaluation={"every": 6}), out=tmp_path, callbacks=[Measure(), Stop(2)])
    assert result.curve("twice", "callback") == ([1, 2], [2.0, 4.0])


def test_measures_may_be_missing_and_may_be_nan_or_numbers_of_numpy(tmp_path: Path) -> None:
    values = {1: None, 2: {}, 3: {"gap": math.nan}, 4: {"gap": np.float32(0.5)}, 5: {"gap": np.int64(3)}}
    result = run(small(rounds=5), out=tmp_path, callbacks=[Measure(values.get)])
    stored = Result.read(tmp_path)
    assert stored is not None
    for read in (result, stored):
        rounds, gaps = read.curve("gap", "callback")
        assert rounds == [3, 4, 5]
        assert math.isnan(gaps[0])
        assert [(type(gap), gap) for gap in gaps[1:]] == [(float, 0.5), (float, 3.0)]


def collect(*callbacks: Callback, round_: int = 1, collected: CallbackMeasures | None = None) -> CallbackMeasures:
    """Collects the measures of a round of FedAvg that has a figure, without training."""
    collected = collected or CallbackMeasures(callbacks)
    method = SimpleNamespace(figures=lambda *_: {"epsilon": 1.0}, name=lambda: "fedavg")
    federation: Any = SimpleNamespace(round=round_, method=method, server={}, server_context=lambda: None)
    collected.rows(small(), federation, [new_row(round_, "participants", 4)])
    return collected


@pytest.mark.parametrize("name", ["accuracy", "loss", "seconds_checkpoint", "degenerate/x", "participants"])
def test_names_of_the_run_are_refused_in_its_first_round(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^callback Measure: measure {name} is already a measure of the run; rename"):
        collect(Measure(lambda _: {name: 1.0}))


def test_names_of_another_callback_are_refused_also_in_a_later_round() -> None:
    first, late = Measure(), Measure(lambda round_: {"twice": 1.0} if round_ == 2 else {})
    collected = collect(first, late)
    with pytest.raises(ConfigError, match=r"^callback Measure: measure twice is already a measure of callback Measure"):
        collect(round_=2, collected=collected)


def test_names_of_the_methods_figures_are_refused() -> None:
    with pytest.raises(ConfigError, match="measure epsilon is already a measure of method fedavg; rename it"):
        collect(Measure(lambda _: {"epsilon": 1.0}))


@pytest.mark.parametrize("value", [True, "0.5", None, math.inf, -math.inf, 1e300, 10**400, 1j, torch.ones(2, 2), [1]])
def test_values_that_are_no_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^callback Measure: measure gap is .*; return a finite number.*$"):
        collect(Measure(lambda _: {"gap": value}))


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({1: 0.5}, "measure 1 is no name"),
        ({"": 0.5}, "measure '' is no name"),
        ({"a\nb": 0.5}, r"measure 'a\\nb' is no name"),
        ([0.5], r"on_measure returned \[0.5\]; return a dict"),
        (0.5, "on_measure returned 0.5; return a dict"),
    ],
)
def test_what_is_no_dict_by_name_is_refused(returned: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=f"^callback Measure: {says}"):
        collect(Measure(lambda _: returned))


def test_measures_are_no_reason_to_stop() -> None:
    class Mistaken(Callback):
        def on_round(self, config: Any, round_: int, rows: Any) -> Any:
            return {"gap": 0.5}

    with pytest.raises(ConfigError, match=r"callback Mistaken: on_round returned a dict.*; return measures from on_m"):
        run(small(), callbacks=[Mistaken()])


def test_a_name_of_the_run_ends_it() -> None:
    with pytest.raises(ConfigError, match="measure bytes_up is already a measure of the run"):
        run(small(), callbacks=[Measure(lambda _: {"bytes_up": 1})])


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_comparison_has_the_measures_of_each_run(tmp_path: Path, jobs: int) -> None:
    results = compare(
        [small(rounds=2, seed=seed) for seed in range(2)], out=tmp_path, jobs=jobs, callbacks=[HeadNorm()]
    )
    norms = [result.curve("head_norm", "callback") for result in results]
    assert [rounds for rounds, _ in norms] == [[1, 2], [1, 2]]
    assert norms[0] != norms[1]


def test_a_study_has_the_measures_of_each_run(tmp_path: Path) -> None:
    setting = {"source": "digits", "partition": "dirichlet", "alpha": 0.3, "clients": 4}
    study = parse_study({"methods": ["fedavg"], "seeds": 2, "rounds": 1, "scenario": setting})
    run_study(study, StudyFolder(tmp_path / "study"), study.chosen(()), callbacks=[HeadNorm()])
    logs = sorted((tmp_path / "study").rglob("metrics.jsonl"))
    assert [log.read_text().count('"head_norm"') for log in logs] == [1, 1]


def test_over_a_federation_measures_are_those_of_the_simulation() -> None:
    from fedloom.flower.in_process import run_in_process

    here, there = (start(small(rounds=2), callbacks=[HeadNorm()]) for start in (run, run_in_process))
    assert there.curve("head_norm", "callback") == here.curve("head_norm", "callback")
