"""Run the cells of a study on any number of processes and machines, each of which takes jobs that no other has taken.

Each process goes through all jobs, holds one cell's lock at a time, and at the end waits for the cells of others. The
lock of a killed process is free, and its cell resumes at its checkpoint.
"""

from __future__ import annotations

import contextlib
import copy
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from fedloom.config.run_config import RunConfig
from fedloom.core.errors import CheckpointError, RunFolderError
from fedloom.engine.ray.cluster import connected
from fedloom.results.result import Result
from fedloom.results.text import counted
from fedloom.results.versions import refuse_mixed, refuse_mixed_results, version_of
from fedloom.runs.callbacks import Callback
from fedloom.runs.run import run
from fedloom.storage import ownership as marker
from fedloom.storage.data_record import OtherDataError
from fedloom.storage.resources import full_disk_message, stopped_by_full_disk
from fedloom.studies.compare import Event, Forward, Listener, on_one_core
from fedloom.studies.on_ray import on_ray
from fedloom.studies.plan import Cell, Study
from fedloom.studies.spawned import how_ended, spawned
from fedloom.studies.study_folder import StudyFolder, read
from fedloom.studies.tuning import Choices, Trial, trials_of

_PAUSE = 0.25  # seconds between two looks at cells that other processes run
Job = Cell | Trial
Waits = Callable[[int], None]  # called with the number of remaining jobs, all with other processes
On = Literal["here", "ray"]


@dataclass(slots=True)
class Outcome:
    """Outcome of cells, by name: run folders if done, first line of errors, unfinished. `results`: by run folder."""

    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remaining: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict, repr=False)


def jobs_of(study: Study, cells: Sequence[Cell]) -> list[Job]:
    """Return every run once, in the order of `cells`, each after its trials, so that rows are completed early."""
    jobs: dict[str, Job] = {}
    for cell in cells:
        jobs |= {trial.folder: trial for trial in trials_of(study, cell)}
        jobs.setdefault(cell.folder, cell)
    return list(jobs.values())


def run_study(
    study: Study,
    study_folder: StudyFolder,
    cells: Sequence[Cell],
    *,
    workers: int = 1,
    on: On = "here",
    listener: Listener = lambda event: None,
    callbacks: Sequence[Callback] = (),
    one_core: bool = False,
    allow_mixed: bool = False,
) -> Outcome:
    """Run the unfinished ones of `cells`, after the trials that they need, and return their outcome.

    Args:
        workers: processes of this call.
        on: "ray" runs the cells on a Ray cluster instead.
        listener: called with news of runs, by their position in `jobs_of`.
        callbacks: every run gets copies of its own.
        one_core: engine `auto` is serial also for one worker, so that seconds of a run are always those of one core.
        allow_mixed: the folder may have cells of other versions of fedloom.

    Raises `ConfigError` before any cell runs, with the folder unchanged; `RunFolderError` for a folder that cannot be
    used, and for a full disk. Other errors of a cell are written beside its folder, and the other cells run.
    """
    jobs = jobs_of(study, cells)
    study_folder.check(study)
    if not allow_mixed:
        refuse_other_versions(study, study_folder, cells)
    alone = min(workers, len(jobs)) < 2 and on == "here"
    with connected("--on ray") if on == "ray" else contextlib.nullcontext() as cluster:
        study_folder.claim(study)  # only after all checks
        worker = StudyWorker(study, study_folder, jobs, study_folder.errors(), tuple(callbacks), alone and not one_core)
        if cluster is not None:
            on_ray(cluster, worker, listener)
        elif alone:
            worker.work(listener, waits=_reported_once(listener))
        else:
            _side_by_side(worker, min(workers, len(jobs)), listener)
    return outcome(study, study_folder, cells)


def refuse_other_versions(study: Study, study_folder: StudyFolder, cells: Sequence[Cell]) -> None:
    """Raise `ConfigError` if `cells` and the folder's runs would have several versions of fedloom."""
    existing, folders = read(study_folder.path), set(_folders(study, study_folder, cells))
    whole = study if existing is None or study.holds(existing) else existing
    versions: dict[str, str | None] = {}
    for folder in _folders(whole, study_folder, whole.cells):
        if folder in folders or study_folder.finished(folder):
            with contextlib.suppress(RunFolderError):  # damaged runs are not joined with others
                versions[str(study_folder.cell(folder))] = version_of(study_folder.cell(folder))
    refuse_mixed(versions, more=not all(map(study_folder.finished, folders)))


def _folders(study: Study, study_folder: StudyFolder, cells: Sequence[Cell]) -> list[str]:
    """Return the run folders of cells, of tuned ones as far as they are chosen, and of their trials."""
    choices = Choices(study, study_folder)
    tuned = (choices.of(job)[0] if isinstance(job, Cell) else job for job in jobs_of(study, cells))
    return [job.folder for job in tuned if job is not None]


def outcome(study: Study, study_folder: StudyFolder, cells: Sequence[Cell]) -> Outcome:
    """Return the outcome of cells so far, as their folders show it."""
    outcome_so_far, choices = Outcome(), Choices(study, study_folder)
    for cell in cells:
        tuned, error = choices.of(cell)
        if tuned is not None:
            error = _gather(study_folder, tuned, outcome_so_far.results)
        if tuned is not None and tuned.folder in outcome_so_far.results:
            outcome_so_far.done[cell.name] = tuned.folder
        elif error:
            outcome_so_far.failed[cell.name] = error.partition("\n")[0]
        else:
            outcome_so_far.remaining.append(cell.name)
    return outcome_so_far


def _gather(study_folder: StudyFolder, cell: Cell, results: dict[str, Result]) -> str | None:
    """Add the result of a finished run to `results`, once; return the error if its files are damaged."""
    if cell.folder in results:
        return None
    if not study_folder.finished(cell.folder):
        return study_folder.error(cell.folder)
    try:
        results[cell.folder] = replace(study_folder.result(cell.folder, cell.config), cell=cell.row)
    except RunFolderError as damage:
        return str(damage)
    return None


def done_of(study: Study, ended: Outcome, allow_mixed: bool = False) -> dict[tuple[str, str], list[Result]]:
    """Return the results of finished cells by setting and row; other listed values share an entry.

    ended: outcome of the cells of `study`. Raises `ConfigError` for results of different versions of fedloom, unless
    `allow_mixed`.
    """
    if not allow_mixed:
        refuse_mixed_results(ended.results.values())
    results_by_row: dict[tuple[str, str], list[Result]] = {}
    for cell in study.cells:
        if cell.name in ended.done:
            results_by_row.setdefault((cell.setting, cell.method), []).append(ended.results[ended.done[cell.name]])
    return results_by_row


def failed_of(study: Study, ended: Outcome) -> dict[tuple[str, str], dict[int, str]]:
    """Return the errors of failed cells, by setting and row as `done_of`, then by seed."""
    errors_by_row: dict[tuple[str, str], dict[int, str]] = {}
    for cell in study.cells:
        if cell.name in ended.failed:
            errors_by_row.setdefault((cell.setting, cell.method), {})[cell.config.seed] = ended.failed[cell.name]
    return errors_by_row


def rows_of(folder: Path) -> dict[str, tuple[str, str]] | None:
    """Return setting and row of a study's cells by config fingerprint; None if the folder holds no study."""
    study = read(folder)
    if study is None:
        return None
    choices = Choices(study, StudyFolder(folder))
    names_by_folder: dict[str, tuple[str, str]] = {}
    for cell in study.cells:
        tuned, _ = choices.of(cell)
        if tuned is not None:
            names_by_folder.setdefault(tuned.config.fingerprint(), cell.row)
    return names_by_folder


@dataclass(frozen=True, slots=True)
class StudyWorker:
    """The work of one call. earlier: errors from before it, by folder. all_cores: whether a run may use all cores."""

    study: Study
    study_folder: StudyFolder
    jobs: Sequence[Job]
    earlier: Mapping[str, str]
    callbacks: tuple[Callback, ...]
    all_cores: bool

    def work(
        self, send: Listener, positions: Collection[int] | None = None, waits: Waits = lambda remaining: None
    ) -> None:
        """Run every free job, or those at `positions`, until all have ended in some process.

        waits: called at every pause. Raises `RunFolderError` if the disk is full or the data have changed, because
        other jobs would fail as well.
        """
        with stopped_by_full_disk(self.study_folder.path):
            self._work(send, range(len(self.jobs)) if positions is None else positions, waits)

    def _work(self, send: Listener, positions: Collection[int], waits: Waits) -> None:
        pending = [(position, self.jobs[position]) for position in positions]
        choices = Choices(self.study, self.study_folder, earlier=self.earlier, records=True)
        while pending:
            remaining = [(position, job) for position, job in pending if not self._ended(position, job, choices, send)]
            if len(remaining) == len(pending):
                waits(len(remaining))
                time.sleep(_PAUSE)
            pending = remaining

    def _ended(self, position: int, job: Job, choices: Choices, send: Listener) -> bool:
        """Run a job unless it has ended already; return False if another process runs it or its trials are missing."""
        if isinstance(job, Cell) and self.study.tried:
            tuned, why = choices.of(job)
            if tuned is None:
                return why is not None
            job = tuned
        with self.study_folder.cell_lock(job.folder) as locked:
            if not locked:
                return False
            error = self.study_folder.error(job.folder)
            if self.study_folder.finished(job.folder):
                send(Event(position, job.config.rounds))
            elif error is None or error == self.earlier.get(job.folder):  # else another process ran it meanwhile
                self._run(position, job.folder, job.config, send)
        return True

    def _run(self, position: int, folder: str, config: RunConfig, send: Listener) -> None:
        watching = [Forward(position, send), *copy.deepcopy(self.callbacks)]
        config = config if self.all_cores else on_one_core(config)
        try:
            marker.refuse_links([self.study_folder.cell(folder)])
            run(config, out=self.study_folder.cell(folder), existing="resume", callbacks=watching)
        except Exception as error:
            if full_disk_message(error) or isinstance(error, OtherDataError):
                raise
            message = " ".join(f"{type(error).__name__}: {error}".split())
            if isinstance(error, CheckpointError):
                message = f"{message}; the run folder is {self.study_folder.cell(folder)}"
            when = f"{time.strftime('%Y-%m-%d %H:%M:%S')} ({time.time_ns()})"
            self.study_folder.write_error(folder, f"{message}\n{when}\n\n{''.join(traceback.format_exception(error))}")
            send(Event(position, 0, note=f"{folder} failed: {message}"))
        else:
            self.study_folder.clear_error(folder)


def _reported_once(listener: Listener) -> Waits:
    """Return a function that reports only the first wait."""
    reported = False

    def report(remaining: int) -> None:
        nonlocal reported
        if not reported:
            listener(Event(0, 0, note=f"{counted(remaining, 'run')} left, with other processes; waiting for them"))
        reported = True

    return report


def _side_by_side(worker: StudyWorker, workers: int, listener: Listener) -> None:
    setting = f"workers = {workers}"
    with spawned(setting, workers, _work, worker) as processes:
        _listen(processes, listener, setting)


def _work(pipe: Connection, worker: StudyWorker) -> None:
    """Run a share of the worker's jobs in a child process, and send the news."""
    lock = threading.Lock()  # a run may send notes from another thread

    def send(event: Event | int) -> None:
        with lock:
            pipe.send(event)

    try:
        worker.work(send, waits=send)
    except RunFolderError as error:
        pipe.send(error)


def _listen(news: Mapping[Connection, BaseProcess], listener: Listener, setting: str = "workers") -> None:
    """Pass on events until all processes have ended. A killed process is reported, and others take its cell.

    Where all of them wait, they wait for processes of other calls. setting: as in `how_ended`, which may raise. Raises
    the `RunFolderError` that stopped a process.
    """
    open_, idle, tell = list(news), set[Connection](), _reported_once(listener)
    while open_:
        for pipe in wait(open_):
            assert isinstance(pipe, Connection)
            try:
                event = pipe.recv()
            except (EOFError, OSError):
                open_.remove(pipe)
                idle.discard(pipe)
                if ending := how_ended(news[pipe], setting):
                    rest = f"{len(open_)} still at work, and its cell is left to them" if open_ else "none is left"
                    listener(Event(0, 0, note=f"a process of this call {ending}; {rest}"))
            else:
                if isinstance(event, RunFolderError):
                    raise event
                if isinstance(event, int):
                    idle.add(pipe)
                    if len(idle) == len(open_):
                        tell(event)
                else:
                    idle.discard(pipe)
                    listener(event)
