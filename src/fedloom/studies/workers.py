"""Running the cells of a study: any number of processes, on any number of machines, take what nobody else has taken.

Each process goes through all jobs, holds one cell's lock at a time, and waits at the end for what others hold: the
lock of a process that was killed is free, and its cell is gone on with from its checkpoint.
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
from fedloom.storage.resources import of_full_disk, stopped_by_full_disk
from fedloom.studies.compare import Event, Forward, Listener, on_one_core
from fedloom.studies.on_ray import on_ray
from fedloom.studies.plan import Cell, Study
from fedloom.studies.spawned import how_ended, spawned
from fedloom.studies.study_folder import Place, read
from fedloom.studies.tuning import Choices, Trial, trials_of

_PAUSE = 0.25  # seconds between two looks at cells that others hold
Job = Cell | Trial
Waits = Callable[[int], None]  # hears how many jobs are left, all with other processes
On = Literal["here", "ray"]


@dataclass(slots=True)
class Outcome:
    """How the cells ended, by their names: run folders, the first line of each error, what has not ended. A finished
    cell whose files are damaged, or of another config, has failed. `results`: of what is done, by run folder."""

    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict, repr=False)


def jobs_of(study: Study, cells: Sequence[Cell]) -> list[Job]:
    """Every run once, in the order of `cells`, each after the trials that it needs: a row is whole early."""
    found: dict[str, Job] = {}
    for cell in cells:
        found |= {trial.folder: trial for trial in trials_of(study, cell)}
        found.setdefault(cell.folder, cell)
    return list(found.values())


def run_study(
    study: Study,
    place: Place,
    cells: Sequence[Cell],
    *,
    workers: int = 1,
    on: On = "here",
    listener: Listener = lambda event: None,
    callbacks: Sequence[Callback] = (),
    one_core: bool = False,
    allow_mixed: bool = False,
) -> Outcome:
    """Run those of `cells` that are left, after the trials that they need. workers: processes of this call. on: "ray"
    takes a Ray cluster instead.

    listener: hears of the runs by their place in `jobs_of`. callbacks: every run gets copies of its own. one_core:
    engine `auto` is serial with one worker, too, as it is with several, so that the seconds of a run are those of one
    core. allow_mixed: the folder may have cells of other versions of fedloom. Raises `ConfigError` before
    any cell runs, and then leaves the folder as it was; `RunFolderError` for a folder that cannot be used, and for a
    full disk. What else fails in a cell is kept beside its folder, and the rest goes on.
    """
    jobs = jobs_of(study, cells)
    place.check(study)
    if not allow_mixed:
        refuse_other_versions(study, place, cells)
    alone = min(workers, len(jobs)) < 2 and on == "here"
    with connected("--on ray") if on == "ray" else contextlib.nullcontext() as cluster:
        place.claim(study)  # once nothing speaks against it
        shift = Shift(study, place, jobs, place.errors(), tuple(callbacks), alone and not one_core)
        if cluster is not None:
            on_ray(cluster, shift, listener)
        elif alone:
            shift.work(listener, waits=_told_once(listener))
        else:
            _side_by_side(shift, min(workers, len(jobs)), listener)
    return outcome(study, place, cells)


def refuse_other_versions(study: Study, place: Place, cells: Sequence[Cell]) -> None:
    """Raises `ConfigError` if what the folder has finished, and `cells`, begun or left, would not all be of one version
    of fedloom. Trials count."""
    there, wanted = read(place.path), set(_folders(study, place, cells))
    whole = study if there is None or study.holds(there) else there
    made: dict[str, str | None] = {}
    for folder in _folders(whole, place, whole.cells):
        if folder in wanted or place.finished(folder):
            with contextlib.suppress(RunFolderError):  # what is damaged is not joined
                made[str(place.cell(folder))] = version_of(place.cell(folder))
    refuse_mixed(made, more=not all(map(place.finished, wanted)))


def _folders(study: Study, place: Place, cells: Sequence[Cell]) -> list[str]:
    """The run folders of cells, of tuned ones as far as they have been, and of their trials."""
    choices = Choices(study, place)
    tuned = (choices.of(job)[0] if isinstance(job, Cell) else job for job in jobs_of(study, cells))
    return [job.folder for job in tuned if job is not None]


def outcome(study: Study, place: Place, cells: Sequence[Cell]) -> Outcome:
    """How far the cells are, from their folders."""
    found, choices = Outcome(), Choices(study, place)
    for cell in cells:
        tuned, error = choices.of(cell)
        if tuned is not None:
            error = _gather(place, tuned, found.results)
        if tuned is not None and tuned.folder in found.results:
            found.done[cell.name] = tuned.folder
        elif error:
            found.failed[cell.name] = error.partition("\n")[0]
        else:
            found.left.append(cell.name)
    return found


def _gather(place: Place, cell: Cell, results: dict[str, Result]) -> str | None:
    """Put the result of a run that has finished with the others, once; what is wrong with the run, if anything is."""
    if cell.folder in results:
        return None
    if not place.finished(cell.folder):
        return place.error(cell.folder)
    try:
        results[cell.folder] = replace(place.result(cell.folder, cell.config), cell=cell.row)
    except RunFolderError as damage:
        return str(damage)
    return None


def done_of(study: Study, ended: Outcome, allow_mixed: bool = False) -> dict[tuple[str, str], list[Result]]:
    """The results of the cells that are done, by setting and row; other listed values are not told apart.

    ended: how those of `study` ended. Raises `ConfigError` for those of different versions of fedloom, unless
    `allow_mixed`.
    """
    if not allow_mixed:
        refuse_mixed_results(ended.results.values())
    found: dict[tuple[str, str], list[Result]] = {}
    for cell in study.cells:
        if cell.name in ended.done:
            found.setdefault((cell.setting, cell.method), []).append(ended.results[ended.done[cell.name]])
    return found


def failed_of(study: Study, ended: Outcome) -> dict[tuple[str, str], dict[int, str]]:
    """Why cells failed, by setting and row as `done_of`, then by seed."""
    found: dict[tuple[str, str], dict[int, str]] = {}
    for cell in study.cells:
        if cell.name in ended.failed:
            found.setdefault((cell.setting, cell.method), {})[cell.config.seed] = ended.failed[cell.name]
    return found


def rows_of(folder: Path) -> dict[str, tuple[str, str]] | None:
    """Setting and row of all cells of the study in this folder whose values are known by now, in their order, by the
    fingerprint of their config; None if there is no study."""
    study = read(folder)
    if study is None:
        return None
    choices = Choices(study, Place(folder))
    found: dict[str, tuple[str, str]] = {}
    for cell in study.cells:
        tuned, _ = choices.of(cell)
        if tuned is not None:
            found.setdefault(tuned.config.fingerprint(), cell.row)
    return found


@dataclass(frozen=True, slots=True)
class Shift:
    """What every process of one call works through. earlier: errors, by folder, from before this call. all_cores: a run
    may take them all."""

    study: Study
    place: Place
    jobs: Sequence[Job]
    earlier: Mapping[str, str]
    callbacks: tuple[Callback, ...]
    all_cores: bool

    def work(self, send: Listener, positions: Collection[int] | None = None, waits: Waits = lambda left: None) -> None:
        """One process's share: every job that is free, or of those at `positions`, until all have ended somewhere.

        waits: hears of every pause. Raises `RunFolderError` if the disk is full or the data have changed: no other job
        would fare better.
        """
        with stopped_by_full_disk(self.place.path):
            self._work(send, range(len(self.jobs)) if positions is None else positions, waits)

    def _work(self, send: Listener, positions: Collection[int], waits: Waits) -> None:
        pending = [(one, self.jobs[one]) for one in positions]
        choices = Choices(self.study, self.place, earlier=self.earlier, records=True)
        while pending:
            left = [(position, job) for position, job in pending if not self._ended(position, job, choices, send)]
            if len(left) == len(pending):
                waits(len(left))
                time.sleep(_PAUSE)
            pending = left

    def _ended(self, position: int, job: Job, choices: Choices, send: Listener) -> bool:
        """Run a job unless it has ended, here or elsewhere; False if it is somebody else's, or waits for trials."""
        if isinstance(job, Cell) and self.study.tried:
            tuned, why = choices.of(job)
            if tuned is None:
                return why is not None
            job = tuned
        with self.place.taken(job.folder) as mine:
            if not mine:
                return False
            error = self.place.error(job.folder)
            if self.place.finished(job.folder):
                send(Event(position, job.config.rounds))
            elif error is None or error == self.earlier.get(job.folder):  # else it failed elsewhere, a moment ago
                self._run(position, job.folder, job.config, send)
        return True

    def _run(self, position: int, folder: str, config: RunConfig, send: Listener) -> None:
        watching = [Forward(position, send), *copy.deepcopy(self.callbacks)]
        config = config if self.all_cores else on_one_core(config)
        try:
            marker.refuse_links([self.place.cell(folder)])
            run(config, out=self.place.cell(folder), existing="resume", callbacks=watching)
        except Exception as error:
            if of_full_disk(error) or isinstance(error, OtherDataError):
                raise
            message = " ".join(f"{type(error).__name__}: {error}".split())
            if isinstance(error, CheckpointError):
                message = f"{message}; the run folder is {self.place.cell(folder)}"
            when = f"{time.strftime('%Y-%m-%d %H:%M:%S')} ({time.time_ns()})"
            self.place.write_error(folder, f"{message}\n{when}\n\n{''.join(traceback.format_exception(error))}")
            send(Event(position, 0, note=f"{folder} failed: {message}"))
        else:
            self.place.clear_error(folder)


def _told_once(listener: Listener) -> Waits:
    """Tells of the first wait: who waits longer knows by then."""
    told = False

    def tell(left: int) -> None:
        nonlocal told
        if not told:
            listener(Event(0, 0, note=f"{counted(left, 'run')} left, with other processes; waiting for them"))
        told = True

    return tell


def _side_by_side(shift: Shift, workers: int, listener: Listener) -> None:
    setting = f"workers = {workers}"
    with spawned(setting, workers, _work, shift) as processes:
        _listen(processes, listener, setting)


def _work(pipe: Connection, shift: Shift) -> None:
    """In a process of its own: a share of the shift, and the news of it."""
    lock = threading.Lock()  # notes may come from another thread

    def send(event: Event | int) -> None:
        with lock:
            pipe.send(event)

    try:
        shift.work(send, waits=send)
    except RunFolderError as error:
        pipe.send(error)


def _listen(news: Mapping[Connection, BaseProcess], listener: Listener, setting: str = "workers") -> None:
    """Pass events on until no process works any more. Of one that was killed this is told, and others take its cell.

    Where all of them wait, they wait for processes of other calls. setting: as in `how_ended`, which may raise. Raises
    the `RunFolderError` that stopped a process.
    """
    open_, idle, tell = list(news), set[Connection](), _told_once(listener)
    while open_:
        for one in wait(open_):
            assert isinstance(one, Connection)
            try:
                event = one.recv()
            except (EOFError, OSError):
                open_.remove(one)
                idle.discard(one)
                if ending := how_ended(news[one], setting):
                    rest = f"{len(open_)} still at work, and its cell is left to them" if open_ else "none is left"
                    listener(Event(0, 0, note=f"a process of this call {ending}; {rest}"))
            else:
                if isinstance(event, RunFolderError):
                    raise event
                if isinstance(event, int):
                    idle.add(one)
                    if len(idle) == len(open_):
                        tell(event)
                else:
                    idle.discard(one)
                    listener(event)
