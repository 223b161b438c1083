"""Progress: time left from the first round on, lines where there is no terminal, bars where there is one."""

from __future__ import annotations

import io
import logging
import sys
import types
from typing import Any

import pytest
from rich.console import Console

import fedloom as fl
from fedloom.runs.config.run_config import parse
from fedloom.runs.studies.live_progress import Event, ProgressDisplay, ProgressEstimate, progress_listener


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def config(seed: int = 0, rounds: int = 4) -> Any:
    return parse({"scenario": {"source": "digits", "partition": "iid"}, "rounds": rounds, "seed": seed})


def test_time_left_is_known_after_the_first_round_however_slow() -> None:
    clock = Clock()
    pace = ProgressEstimate([5], clock)
    pace.record(0, 0)
    assert pace.remaining() is None
    for round_, left in ((1, 4 * 3600), (2, 3 * 3600), (3, 2 * 3600)):
        clock.now += 3600
        pace.record(0, round_)
        assert pace.remaining() == left
    clock.now += 600  # between two rounds it runs down
    assert pace.remaining() == 2 * 3600 - 600
    clock.now += 10_000
    assert pace.remaining() == 0
    assert pace.elapsed == 3 * 3600 + 600 + 10_000


def test_rounds_that_were_done_before_say_nothing_of_the_pace() -> None:
    clock = Clock()
    pace = ProgressEstimate([10, 10, 10], clock)
    pace.record(0, 10)  # finished before
    pace.record(1, 6)  # resumed
    assert (pace.done, pace.total, pace.remaining()) == (16, 30, None)
    clock.now += 2
    pace.record(1, 7)
    assert pace.remaining() == 2 * 13  # the third run has not been heard of: it is all to do


def test_without_a_terminal_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with ProgressDisplay([config(rounds=100)], quiet=False, clock=clock) as live:
        live(Event(0, 0))
        for round_ in range(1, 101):
            clock.now += 1
            live(Event(0, round_, accuracy=round_ / 100))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[:3] == [
        "fedavg seed 0: 100 rounds to go",
        "fedavg seed 0: round 1 of 100, accuracy 1.0 %, 0:00:01 gone, 0:01:39 left",
        "fedavg seed 0: round 16 of 100, accuracy 16.0 %, 0:00:16 gone, 0:01:24 left",
    ]
    assert len(lines) == 8  # every 15 seconds of a hundred


def test_long_runs_have_few_lines_and_slow_rounds_one_each(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with ProgressDisplay([config(rounds=36_000)], quiet=False, clock=clock) as live:
        live(Event(0, 0))
        for round_ in range(1, 36_000):
            clock.now += 1
            live(Event(0, round_))
    assert 80 < len(capsys.readouterr().err.splitlines()) < 120  # ten hours
    with ProgressDisplay([config(rounds=5)], quiet=False, clock=clock) as live:
        live(Event(0, 0))
        for round_ in range(1, 5):
            clock.now += 7200
            live(Event(0, round_))
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(", ")[2] for line in lines[1:]] == [f"{8 - 2 * n}:00:00 left" for n in range(4)]


def test_several_runs_have_a_share_of_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with ProgressDisplay([config(0), config(1)], quiet=False, clock=clock) as live:
        live(Event(0, 4))  # reused
        live(Event(1, 0))
        clock.now += 30
        live(Event(1, 1, 0.5))
    assert capsys.readouterr().err.splitlines() == [
        "2 runs: 4 rounds to go",
        "fedavg seed 1: round 1 of 4, accuracy 50.0 %, all runs 62%, 0:00:30 gone, 0:01:30 left",
    ]


def test_quiet_leaves_notes_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressDisplay([config()], quiet=True) as live:
        live(Event(0, 0))
        live(Event(0, 1, 0.5))
        live(Event(0, 0, note="term [ce] of the loss is lost"))
    assert capsys.readouterr() == ("", "note: term [ce] of the loss is lost\n")


def test_a_terminal_has_bars_the_one_of_all_runs_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "80", "LINES": "20", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    clock = Clock()
    configs = [config(seed) for seed in range(30)]
    with ProgressDisplay(configs, quiet=False, clock=clock) as live:
        for run in range(3):
            live(Event(run, 0))
        clock.now += 60
        live(Event(0, 4, 0.9))
        live(Event(1, 1, 0.5))
        live._progress.refresh()
    out, err = capsys.readouterr()
    shown = err.rpartition("all runs")[2]  # the last picture
    assert out == ""
    assert "5/120" in shown
    assert "0:23:00 left" in shown  # 12 s a round, 115 rounds
    assert "seed 0" not in shown  # finished
    assert "seed 1" in shown
    assert "1/4" in shown
    assert "seed 3" not in shown  # not begun


class Outputs:
    """The outputs of a notebook cell, as a front end keeps them."""

    def __init__(self) -> None:
        self.bundles: list[dict[str, str]] = []
        self.updates = 0

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: bool) -> Outputs:
        assert raw
        assert display_id
        self.bundles.append(bundle)
        return self

    def update(self, bundle: dict[str, str], *, raw: bool) -> None:
        self.updates += 1
        self.bundles[-1] = bundle


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Outputs:
    outputs = Outputs()
    display = types.ModuleType("IPython.display")
    display.display = outputs.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(
        "fedloom.runs.studies.live_progress.console_of", lambda as_json: Console(file=io.StringIO(), force_jupyter=True)
    )
    return outputs


def test_a_notebook_has_one_line_however_many_rounds(notebook: Outputs) -> None:
    clock = Clock()
    with ProgressDisplay([config(rounds=5000)], quiet=False, clock=clock) as live:
        for round_ in range(5001):
            clock.now += 0.05
            live(Event(0, round_, accuracy=round_ / 5000))
    assert len(notebook.bundles) == 1
    assert notebook.updates < 1100  # a quarter of a second apart
    lines = notebook.bundles[0]["text/plain"].splitlines()
    assert len(lines) == 1
    assert "5000/5000" in lines[0]
    assert "accuracy 100.0" in lines[0]
    assert notebook.bundles[0]["text/html"].startswith("<pre")


def test_several_runs_of_a_notebook_settle_to_the_line_of_all_and_their_notes(notebook: Outputs) -> None:
    clock = Clock()
    with ProgressDisplay([config(seed) for seed in range(3)], quiet=False, clock=clock) as live:
        for run in range(3):
            live(Event(run, 0))
            live(Event(run, 0, note=f"the [loss] <b>term</b>\x1b[2J lost {run} of it"))
            clock.now += 1
            live(Event(run, 4, 0.5))
    assert len(notebook.bundles) == 1
    bar, note = notebook.bundles[0]["text/plain"].splitlines()
    assert "12/12" in bar
    assert note == r"note: the [loss] <b>term</b>\x1b[2J lost 0 of it"  # the others differ in a number alone
    assert "<b>" not in notebook.bundles[0]["text/html"]


def test_a_run_that_had_finished_before_and_no_event_show_nothing_or_a_full_line(notebook: Outputs) -> None:
    with ProgressDisplay([config()], quiet=False):
        pass
    assert notebook.bundles == []
    with ProgressDisplay([config()], quiet=False) as live:
        live(Event(0, 4))
    assert "4/4" in notebook.bundles[0]["text/plain"]


QUICK: dict[str, Any] = {"rounds": 2, "local_epochs": 1, "engine": "serial"}


def test_python_without_a_terminal_logs_lines(caplog: pytest.LogCaptureFixture, capsys: Any) -> None:
    scenario = fl.scenario("digits", clients=2)
    with caplog.at_level(logging.INFO, logger="fedloom"):
        fl.run(scenario=scenario, **QUICK)
        fl.compare(["fedavg", "fedavgm"], scenario=scenario, seeds=1, **QUICK)
    lines = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert "fedavg seed 0: 2 rounds to go" in lines
    assert any(line.startswith("fedavg seed 0: round 1 of 2, accuracy") for line in lines)
    assert "2 runs: 4 rounds to go" in lines
    assert capsys.readouterr() == ("", "")


def test_notes_are_warnings_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with progress_listener([config()], True) as listener:
        listener(Event(0, 0, note="a term\nis lost"))
    assert [(record.levelno, record.message) for record in caplog.records] == [
        (logging.WARNING, r"note: a term\nis lost")
    ]


def test_progress_false_is_silent(caplog: pytest.LogCaptureFixture, capsys: Any, notebook: Outputs) -> None:
    scenario = fl.scenario("digits", clients=2)
    with caplog.at_level(logging.DEBUG, logger="fedloom.runs.studies"):
        fl.run(scenario=scenario, progress=False, **QUICK)
        fl.compare("fedavg", scenario=scenario, seeds=1, progress=False, **QUICK)
    assert (caplog.records, notebook.bundles, capsys.readouterr()) == ([], [], ("", ""))


@pytest.mark.parametrize("value", ["no", 0, None])
def test_progress_is_true_or_false(value: Any) -> None:
    with pytest.raises(fl.FedloomError, match=r"progress = .*: need True or False"):
        fl.run(scenario="digits", progress=value, **QUICK)


def test_a_run_that_had_finished_before_is_a_full_line(notebook: Outputs, tmp_path: Any) -> None:
    for _ in range(2):
        fl.run(scenario="digits", out=tmp_path / "run", **QUICK)
    lines = [bundle["text/plain"] for bundle in notebook.bundles]
    assert len(lines) == 2
    assert all("2/2" in line and "0:00:00 left" in line for line in lines)
