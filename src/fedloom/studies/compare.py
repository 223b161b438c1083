"""Compare methods and seeds on equal terms: the same scenario, initial weights and batches."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedloom.config.run_config import RunConfig
from fedloom.core.errors import ConfigError, RunFolderError, picklable_error
from fedloom.data import Scenario
from fedloom.results.result import Result
from fedloom.runs.callbacks import Callback
from fedloom.runs.run import Existing, run
from fedloom.storage import ownership as marker
from fedloom.storage.data_record import KEY, refuse_mixed_data
from fedloom.storage.run_folder import Row
from fedloom.studies.spawned import how_ended, spawned


@dataclass(frozen=True, slots=True)
class Event:
    """News of one run: its position in the list, the round that it finished, its accuracy if tested, a note."""

    position: int
    round: int
    accuracy: float | None = None
    note: str | None = None


Listener = Callable[[Event], None]


def folder_name(config: RunConfig) -> str:
    """Return a run folder's name: the config keys that differ most often, and the fingerprint."""
    return f"{config.method}-{config.preset}-seed{config.seed}-{config.fingerprint()[:8]}"


def compare(
    configs: Sequence[RunConfig],
    *,
    out: Path | None,
    existing: Existing = "resume",
    jobs: int | None = None,
    listener: Listener = lambda event: None,
    scenario: Scenario | None = None,
    callbacks: Sequence[Callback] = (),
) -> list[Result]:
    """Run all configs in folders below `out`, and return their results in the order of the configs.

    Args:
        out: a folder; None keeps nothing on disk.
        jobs: processes at a time; None for one per core, at most one per run. Numbers do not depend on it.
        scenario: used by all runs instead of the configs'.
        callbacks: every run gets copies of its own.

    Raises the first error of any run; runs in progress keep their checkpoints, and no other run starts. Raises
    `ConfigError` for equal runs, and for several processes without `out` or with a scenario or model passed as an
    object; `RunFolderError` if `out` cannot be used or a process was ended from outside.
    """
    names = [folder_name(config) for config in configs]
    if len(set(names)) < len(names):
        name, _ = Counter(names).most_common(1)[0]
        raise ConfigError(f"run {name} is there twice: compare each once")
    workers = min(jobs or os.cpu_count() or 1, len(configs))
    objects = scenario is not None or any(model.factory for config in configs for model in config.models())
    if workers > 1 and (out is None or objects):
        raise ConfigError(
            f"jobs = {jobs}: several processes need out, and no scenario or model that is an object; use jobs=1"
        )
    if out is None:
        return _one_by_one(configs, [None] * len(configs), existing, listener, scenario, callbacks)
    folders = [out / name for name in names]
    marker.refuse_links(folders)
    try:
        marker.check(out, "comparison")
        out.mkdir(parents=True, exist_ok=True)
        marker.claim(out, "comparison")
    except OSError as error:
        raise RunFolderError(f"{out}: cannot be used as the folder of a comparison ({error.strerror})") from None
    try:
        if workers <= 1:
            results = _one_by_one(configs, folders, existing, listener, scenario, callbacks)
        else:
            results = _side_by_side(configs, folders, existing, workers, listener, callbacks)
    finally:
        marker.remove_if_empty(out)
    refuse_mixed_data((str(result.folder), result.scenario.get(KEY)) for result in results)
    return results


def _one_by_one(
    configs: Sequence[RunConfig],
    folders: Sequence[Path | None],
    existing: Existing,
    listener: Listener,
    scenario: Scenario | None,
    callbacks: Sequence[Callback],
) -> list[Result]:
    results = []
    for position, (config, folder) in enumerate(zip(configs, folders, strict=True)):
        watching = [Forward(position, listener), *copy.deepcopy(callbacks)]
        results.append(run(config, scenario=scenario, out=folder, existing=existing, callbacks=watching))
        listener(Event(position, config.rounds))  # also for a run that had finished before
    return results


def _side_by_side(
    configs: Sequence[RunConfig],
    folders: Sequence[Path],
    existing: Existing,
    workers: int,
    listener: Listener,
    callbacks: Sequence[Callback],
) -> list[Result]:
    setting, jobs = f"jobs = {workers}", deque(enumerate(zip(configs, folders, strict=True)))
    with spawned(setting, workers, _work, existing, tuple(callbacks)) as processes:
        error = _hand_out(jobs, processes, listener, setting, folders[0].parent)
        if error is not None:
            raise error
    finished = [Result.read(folder) for folder in folders]
    return [result for result in finished if result is not None]


def _hand_out(
    jobs: deque[tuple[int, tuple[RunConfig, Path]]],
    processes: Mapping[Connection, BaseProcess],
    listener: Listener,
    setting: str,
    out: Path,
) -> Exception | None:
    """Run all jobs on the processes and return the first error, after which each stops at the end of its round."""
    error: Exception | None = None
    busy: set[Connection] = set()

    def give(pipe: Connection) -> None:
        busy.discard(pipe)
        if jobs and error is None:
            with contextlib.suppress(OSError):  # a process that died; the next `recv` notices it
                pipe.send(jobs.popleft())
            busy.add(pipe)

    for pipe in processes:
        give(pipe)
    while busy:
        for pipe in busy.intersection(wait(list(busy))):
            news = _received(pipe)
            if isinstance(news, Event):
                listener(news)
                continue
            failed = news
            if isinstance(news, EOFError):
                busy.discard(pipe)
                failed = _lost(processes[pipe], setting, out)
            if failed is not None and error is None:
                error = failed
                for sibling in busy - {pipe}:
                    with contextlib.suppress(OSError):
                        sibling.send(None)
            if pipe in busy:
                give(pipe)
    return error


def _lost(process: BaseProcess, setting: str, out: Path) -> RunFolderError:
    """Return the error for a process that ended too early. Raises `ConfigError` if the script has no guard."""
    ending = how_ended(process, setting) or "ended early"
    if process.exitcode == -signal.SIGKILL:
        ending = "was ended from outside (out of memory?)"
    return RunFolderError(
        f"{out}: a process of the comparison {ending}; runs keep their checkpoints: compare again to resume, with "
        "fewer --jobs if memory is short"
    )


def _received(pipe: Connection) -> Event | Exception | None:
    """Receive the next news of a process: an event, None at the end of a run, its error; an `EOFError` if it ended."""
    try:
        news: Event | Exception | None = pipe.recv()
    except (EOFError, OSError):
        return EOFError()
    return news


def _work(pipe: Connection, existing: Existing, callbacks: Sequence[Callback]) -> None:
    """Run one config after another, in a child process, until the parent closes the pipe."""
    lock = threading.Lock()  # a run may send notes from another thread

    def report(event: Event) -> None:
        """Send news, and end here, between two rounds, if another run has failed."""
        if event.note is None and pipe.poll():
            raise RunFolderError("stopped because another run of the comparison failed; compare again to resume")
        with lock:
            pipe.send(event)

    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        if job is None:  # another run failed just as this one ended
            continue
        position, (config, folder) = job
        watching = [Forward(position, report), *copy.deepcopy(callbacks)]
        try:
            run(on_one_core(config), out=folder, existing=existing, callbacks=watching)
            report(Event(position, config.rounds))  # also for a run that had finished before
            answer = None
        except Exception as error:
            answer = picklable_error(error)
        with lock:
            pipe.send(answer)


def on_one_core(config: RunConfig) -> RunConfig:
    """Return the config for one of several processes: engine `auto` becomes serial, as other runs use the cores."""
    if config.engine.name != "auto":
        return config
    return config.model_copy(update={"engine": config.engine.model_copy(update={"name": "serial"})})


class Forward(Callback):
    """Turn a run's callbacks into events."""

    def __init__(self, position: int, send: Listener) -> None:
        self._position, self._send = position, send

    def on_start(self, config: RunConfig, first_round: int) -> None:
        self._send(Event(self._position, first_round - 1))

    def on_round(self, config: RunConfig, round_: int, rows: Sequence[Row]) -> None:
        tested = [r["value"] for r in rows if r["client"] is None and (r["split"], r["name"]) == ("test", "accuracy")]
        self._send(Event(self._position, round_, tested[-1] if tested else None))

    def on_end(self, config: RunConfig, result: Result) -> None:
        self._send(Event(self._position, config.rounds))

    def on_note(self, config: RunConfig, note: str) -> None:
        self._send(Event(self._position, 0, note=note))
