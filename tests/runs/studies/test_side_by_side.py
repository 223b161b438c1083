"""Several runs: each once, with its own callbacks; jobs are handed to processes once, and the first error ends them."""

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

import fedloom as fl
from die_once import FullDisk
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.runs.callbacks import EarlyStopping
from fedloom.runs.config.run_config import parse
from fedloom.runs.studies.live_progress import Event
from fedloom.runs.studies.run_study import compare
from fedloom.runs.studies.runner import _HandOut


def configs(**changes: Any) -> list[Any]:
    scenario = {"source": "digits", "partition": "iid", "clients": 2}
    values = {"scenario": scenario, "rounds": 3, "local_epochs": 1, "engine": "serial"} | changes
    return [parse(values | {"seed": seed}) for seed in (0, 1)]


class OfDigits(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


def test_runs_that_are_the_same_are_refused(tmp_path: Path) -> None:
    one, _ = configs()
    with pytest.raises(ConfigError, match=r"fedavg-sound-seed0-.* is there twice"):
        compare([one, one], out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_method_without_the_tested_model_is_named_before_any_run(tmp_path: Path) -> None:
    """FedRep has personal models alone; FedAvg would have trained for nothing."""
    fedavg, fedrep = configs()[0], configs(method="fedrep")[0]
    with pytest.raises(ConfigError, match=r"'global/global': fedrep has no global model; use personal/global or"):
        compare([fedavg, fedrep], out=tmp_path, jobs=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_run_has_callbacks_of_its_own_in_one_process_and_in_several(tmp_path: Path) -> None:
    stop = EarlyStopping(patience=1, min_delta=1.0)  # no accuracy rises by more than 100 points
    for jobs in (1, 2):
        results = compare(configs(), out=tmp_path / str(jobs), jobs=jobs, callbacks=[stop])
        assert [result.numbers["stopped"]["round"] for result in results] == [2, 2]


@pytest.mark.slow
def test_models_from_python_go_to_other_processes_with_the_same_numbers(tmp_path: Path) -> None:
    scenario = fl.scenario("digits", partition="iid", clients=2)
    how = {"scenario": scenario, "seeds": 2, "rounds": 1, "engine": "serial", "progress": False}
    for number, model in enumerate((OfDigits, nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))):
        one, several = (
            fl.compare("fedavg", model=model, out=tmp_path / f"{number}-{jobs}", jobs=jobs, **how) for jobs in (1, 2)
        )
        assert [row["by_seed"] for row in one.rows()] == [row["by_seed"] for row in several.rows()]


def test_without_a_folder_runs_go_one_by_one() -> None:
    assert [result.folder for result in compare(configs(rounds=1), out=None, jobs=1)] == [None, None]
    with pytest.raises(ConfigError, match="several processes need out"):
        compare(configs(), out=None, jobs=2)


def test_a_full_disk_ends_a_comparison_in_a_line_that_names_its_folder(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=f"^{tmp_path}: no space left on the device; its runs have stopped"):
        compare(configs(rounds=1), out=tmp_path, jobs=1, callbacks=[FullDisk()])
    assert len(list(tmp_path.glob("fedavg-*"))) == 1  # the other one was never begun
    assert len(compare(configs(rounds=1), out=tmp_path, jobs=1)) == 2


# Of each job, at one attempt after another, also with events before an answer; None: it is killed.
Answers = dict[int, Iterator[bool | Exception | Event | None]]


class HandedOut:
    """A call whose processes are threads that give set answers."""

    def __init__(self, answers: Answers, processes: int, on_error: str = "record") -> None:
        self.events: list[Event] = []
        self.attempts: list[int] = []
        self.asked_to_stop = 0
        self._answers = answers
        pipes: dict[Any, Any] = {}
        for _ in range(processes):
            pipe, far_end = multiprocessing.Pipe()
            pipes[pipe] = SimpleNamespace(join=lambda: None, exitcode=-9)
            threading.Thread(target=self._work, args=(far_end,), daemon=True).start()
        runner: Any = SimpleNamespace(jobs=range(len(answers)), on_error=on_error, folder=SimpleNamespace(path="out"))
        self.error: Exception | None = None
        try:
            _HandOut(runner, pipes, "jobs", self.events.append).run()
        except Exception as error:
            self.error = error
        for pipe in pipes:
            pipe.close()

    @property
    def notes(self) -> Sequence[str]:
        return [event.note for event in self.events if event.note]

    def _work(self, far_end: Connection) -> None:
        with far_end:
            while True:
                try:
                    position = far_end.recv()
                except (EOFError, OSError):
                    return
                if position is None:
                    self.asked_to_stop += 1
                    return
                self.attempts.append(position)
                answer = next(self._answers[position])
                while isinstance(answer, Event):
                    far_end.send(answer)
                    answer = next(self._answers[position])
                if answer is None:
                    return
                far_end.send(answer)


def test_each_job_is_handed_out_once() -> None:
    call = HandedOut({position: iter([True]) for position in range(9)}, processes=3)
    assert (call.error, call.notes) == (None, [])
    assert sorted(call.attempts) == list(range(9))


def test_processes_that_wait_for_one_another_say_nothing() -> None:
    tried_twice = threading.Event()

    def slow() -> Iterator[bool]:
        tried_twice.wait(20)
        yield True

    def needs_the_slow_job() -> Iterator[bool]:
        yield False
        tried_twice.set()
        yield False
        yield True

    call = HandedOut({0: slow(), 1: needs_the_slow_job()}, processes=2)
    assert call.notes == []
    assert call.attempts.count(1) == 3


def test_a_job_that_waited_for_one_that_has_just_ended_is_tried_again_at_once() -> None:
    ended = threading.Event()

    def slow() -> Iterator[bool]:
        ended.wait(20)
        yield True

    def needs_the_slow_job() -> Iterator[bool]:
        ended.set()
        time.sleep(0.2)  # its answer, of the time before, comes after that of the other one
        yield False
        yield True

    call = HandedOut({0: slow(), 1: needs_the_slow_job()}, processes=2)
    assert call.notes == []
    assert call.attempts.count(1) == 2


def test_a_busy_process_that_always_reports_keeps_no_other_from_looking_again() -> None:
    """Another call has ended the job that the free process waits for."""
    tried_again = threading.Event()

    def reports() -> Iterator[bool | Event]:
        for _ in range(400):
            if tried_again.wait(0.05):
                break
            yield Event(0, 1)
        yield True

    def waits() -> Iterator[bool]:
        yield False
        tried_again.set()
        yield True

    began = time.monotonic()
    call = HandedOut({0: reports(), 1: waits()}, processes=2)
    assert call.attempts.count(1) == 2
    assert time.monotonic() - began < 10


def test_processes_that_wait_for_other_calls_say_so_once() -> None:
    call = HandedOut({0: iter([True]), 1: iter([False, False, False, True])}, processes=2)
    assert call.notes == ["1 run left, with other processes; waiting for them"]


def test_the_job_of_a_killed_process_is_left_to_the_others() -> None:
    call = HandedOut({0: iter([None, True]), 1: iter([True])}, processes=2)
    assert call.error is None
    assert sorted(call.attempts) == [0, 0, 1]
    (note,) = call.notes
    assert "killed by signal 9, as the system does when memory runs out; 1 still at work, and its cell is left" in note


def test_jobs_that_kill_all_processes_are_left() -> None:
    call = HandedOut({0: iter([None, None]), 1: iter([True])}, processes=2)
    assert call.error is None
    assert call.notes[-1].endswith("none is left")


def test_a_killed_process_ends_a_call_that_raises_errors() -> None:
    call = HandedOut({0: iter([None]), 1: iter([True]), 2: iter([True])}, processes=1, on_error="raise")
    assert isinstance(call.error, RunFolderError)
    assert "memory runs out; runs keep their checkpoints: call it again to resume them, with fewer jobs" in str(
        call.error
    )
    assert call.attempts == [0]


@pytest.mark.parametrize("on_error", ["raise", "record"])
def test_the_first_error_ends_all(on_error: str) -> None:
    stopped = threading.Event()

    def fails() -> Iterator[Exception]:
        yield ValueError("first")

    def goes_on() -> Iterator[bool]:
        stopped.wait(0.5)
        yield True

    call = HandedOut({0: goes_on(), 1: fails(), 2: iter([True])}, processes=2, on_error=on_error)
    assert str(call.error) == "first"
    assert sorted(call.attempts) == [0, 1]
    assert call.asked_to_stop <= 1
