"""Runs the jobs of a comparison or a study in this process, in several, or as tasks of Ray.

Parent and child share only a pipe, because a process that dies must not leave a lock behind."""

import contextlib
import copy
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeAlias

from fedloom.core.console import block_interrupts, end_if_stopped, listen_for_stop
from fedloom.core.errors import CheckpointError, ConfigError, RunFolderError, StoppedError, picklable_error
from fedloom.data import Scenario
from fedloom.engine.ray import Cluster, Lost, Ref
from fedloom.evaluation.own_metrics import own_sources, pickled_sources, register_metric, register_pickled
from fedloom.runs.callbacks import Callback
from fedloom.runs.run import Existing, run
from fedloom.runs.storage.data_record import OtherDataError
from fedloom.runs.storage.folders import full_disk_message, refuse_links, stopped_by_full_disk
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.studies.live_progress import Event, Forward, Listener, waiting
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.study_folder import STUDY, StudyFolder
from fedloom.runs.studies.tuning import Choices, Job, trials_of

PAUSE = 0.25  # seconds between two looks at jobs that processes of other calls work on


@dataclass
class Runner:
    """The jobs of one call, and how a process runs one of them. Child processes and Ray's workers have copies of it.

    - on_error: "raise" ends the call with the first error of any run; `results` then has the results of this process's
      runs, by position. "record" writes errors to files and continues, unless the disk is full or the data have
      changed, because then every run would fail. Calls that record errors may share a folder: each takes runs that no
      other call works on.
    - all_cores: engine `auto` may use all cores for a run; it is serial otherwise, as other runs use them.
    - existing, callbacks, scenario, result_type: as in `compare`.
    """

    study: StudyPlan
    folder: StudyFolder | None
    jobs: Sequence[Job]
    on_error: Literal["raise", "record"]
    existing: Existing = "resume"
    callbacks: Sequence[Callback] = ()
    scenario: Scenario | None = None
    all_cores: bool = False
    result_type: type[RunData] = RunData

    def __post_init__(self) -> None:
        self.results = dict[int, RunData]()
        self._earlier = {} if self.folder is None else self.folder.errors()  # of runs that this call tries again
        self._choices = None if self.folder is None else Choices(self.study, self.folder, earlier=self._earlier)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics that the configs of all jobs ask for."""
        return list(dict.fromkeys(name for job in self.jobs for name in job.config.evaluation.metrics))

    def in_turn(self, positions: Sequence[int], listener: Listener) -> None:
        """Run the jobs at `positions` one after another in this process, until all have ended in some process."""
        waited = False
        while positions:
            blocked = [position for position in positions if not self.attempt(position, listener)]
            if len(blocked) == len(positions):
                if not waited:
                    listener(waiting(len(blocked)))
                waited = True
                time.sleep(PAUSE)
            positions = blocked

    def attempt(self, position: int, send: Listener) -> bool:
        """Run a job unless it has ended; return False if another process runs it or its trials are missing.

        Raises the run's error as `on_error` says, `RunFolderError` for a full disk, `StoppedError` after SIGUSR1."""
        end_if_stopped()
        job = self.jobs[position]
        with contextlib.nullcontext() if self.folder is None else stopped_by_full_disk(self.folder.path):
            if isinstance(job, Cell) and self._choices is not None:
                tuned, why = self._choices.of(job)
                if tuned is None:
                    return why is not None
                job = tuned
            if self.folder is None or self.on_error == "raise":
                self.results[position] = self._run(position, job, send)
                return True
            with self.folder.cell_lock(job.folder) as locked:
                if locked:
                    self._run_recorded(position, job, self.folder, send)
                return locked

    def _run_recorded(self, position: int, job: Job, folder: StudyFolder, send: Listener) -> None:
        """Run a job unless another process did so meanwhile, and write its error to a file in the study's folder."""
        if folder.finished(job.folder):
            send(Event(position, job.config.rounds))
            return
        if folder.error(job.folder) not in (None, self._earlier.get(job.folder)):
            return
        try:
            self._run(position, job, send)
        except Exception as error:
            if full_disk_message(error) or isinstance(error, OtherDataError | StoppedError):
                raise
            message = " ".join(f"{type(error).__name__}: {error}".split())
            if isinstance(error, CheckpointError):
                message = f"{message}; the run folder is {folder.cell(job.folder)}"
            # Nanoseconds make every error unique, or one that occurs again would pass for that of the earlier attempt.
            when = f"{time.strftime('%Y-%m-%d %H:%M:%S')} ({time.time_ns()})"
            trace = "".join(traceback.format_exception(error))
            folder.write_error(job.folder, f"{message}\n{when}\n\n{trace}")
            send(Event(position, 0, note=f"{job.folder} failed: {message}"))
        else:
            folder.clear_error(job.folder)

    def _run(self, position: int, job: Job, send: Listener) -> RunData:
        config, out = job.config, None if self.folder is None else self.folder.cell(job.folder)
        refuse_links([] if out is None else [out])
        # several runs at a time use the cores already, and engines do not change numbers
        if config.engine.name == "auto" and not self.all_cores:
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"name": "serial"})})
        watching = [Forward(position, send), *copy.deepcopy(self.callbacks)]
        how: Any = {"existing": self.existing, "callbacks": watching, "result_type": self.result_type}
        result: RunData = run(config, scenario=self.scenario, out=out, **how)
        send(Event(position, config.rounds))  # also for a run that had finished before
        return result


def on_ray(cluster: Cluster, runner: Runner, listener: Listener) -> None:
    """Run every job of `runner` as a Ray task of `cluster`; cells wait for their trials, and `listener` hears of a job
    when it has ended. Raises `RunFolderError` if a node does not see the folder."""
    shared, tasks = cluster.put(runner), dict[str, Ref]()
    metrics = own_sources(runner.metrics)

    def calls() -> Iterator[tuple[int, Ref]]:
        for position, job in enumerate(runner.jobs):
            trials = trials_of(runner.study, job) if isinstance(job, Cell) else []
            first = [tasks[trial.folder] for trial in trials]
            tasks[job.folder] = cluster.call(_on_node, shared, metrics, Path.cwd(), position, *first)
            yield position, tasks[job.folder]

    for position, news in cluster.ended(calls()):
        end_if_stopped()
        if isinstance(news, Lost):
            folder = runner.jobs[position].folder
            listener(Event(position, 0, note=f"{folder} is left: {news.why}; the same command resumes it"))
        else:
            for event in news:
                listener(event)


def _on_node(runner: Runner, metrics: Mapping[str, object], folder: Path, position: int, *trials: Any) -> list[Event]:
    assert runner.folder is not None
    for metric in metrics.values():
        register_metric(metric)
    path = folder / runner.folder.path
    if not (path / STUDY).exists():
        raise RunFolderError(
            f"node {socket.gethostname()} does not see {path}; all nodes must share the folder of a study, and have it "
            "at the same path"
        )
    os.chdir(folder)  # relative paths of a config begin where the call was made
    news: list[Event] = []
    runner.in_turn([position], news.append)
    return news


Work: TypeAlias = Callable[..., None]  # called with the process's end of its pipe, and with `arguments`
_WITHOUT_GUARD = 79  # exit code of a process in which the imported script starts processes again


@contextlib.contextmanager
def spawned(setting: str, count: int, work: Work, *arguments: Any) -> Iterator[Mapping[Connection, BaseProcess]]:
    """Start `count` processes that run `work(pipe, *arguments)`, and yield them by the parent's ends of their pipes.

    The processes end with the block, or with this process, however it ends. Raises `ConfigError`, with the key
    `setting` that asked for processes, if this process may not start others."""
    _check_may_spawn(setting)
    context = multiprocessing.get_context("spawn")
    watched, held_open = context.Pipe(duplex=False)
    processes: dict[Connection, BaseProcess] = {}
    try:
        with block_interrupts(spawn=True):
            for _ in range(count):
                pipe, far_end = context.Pipe()
                process: BaseProcess = context.Process(target=_begin, args=(work, far_end, watched, arguments))
                try:
                    process.start()
                    processes[pipe] = process
                finally:
                    far_end.close()
        yield processes
    finally:
        # Each child watches the other end (`_follow`). The system closes ours as well if this process is killed, so
        # children never outlive it.
        held_open.close()
        watched.close()
        for pipe, process in processes.items():
            process.join()
            pipe.close()


def how_ended(process: BaseProcess, setting: str) -> str | None:
    """Return how a process that closed its pipe ended, in words that follow "a process"; None if it has done its work.

    Raises `ConfigError` if it could not work because the script has no guard."""
    process.join()
    code = process.exitcode or 0
    if code == _WITHOUT_GUARD:
        raise ConfigError(
            f"{setting}: each process imports the script, which then starts processes again; put the script's work "
            'below if __name__ == "__main__":'
        )
    if code == -signal.SIGKILL:
        return f"was killed by signal {-code}, as the system does when memory runs out"
    if code:
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return None


def _check_may_spawn(setting: str) -> None:
    """Raise `ConfigError` if processes cannot be started; end a process whose script has no guard."""
    current = multiprocessing.current_process()
    if getattr(current, "_inheriting", False):  # the check of multiprocessing before it raises
        raise SystemExit(_WITHOUT_GUARD)
    if current.daemon:
        raise ConfigError(
            f"{setting}: this process is daemonic, like a worker of multiprocessing.Pool, and may start no others; "
            "take 1, or a concurrent.futures.ProcessPoolExecutor in place of the pool"
        )
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is not None and getattr(main, "__spec__", None) is None and not Path(path).is_file():
        source = "came through standard input" if path == "<stdin>" else f"is not at {path} any more"
        raise ConfigError(f"{setting}: each process imports the script, which {source}; save it as a file, or take 1")


def _begin(work: Work, pipe: Connection, watched: Connection, arguments: tuple[Any, ...]) -> None:
    """Run `work` in a child process, which ends with its parent, however that ends."""
    threading.Thread(target=_follow, args=(watched,), daemon=True).start()
    listen_for_stop()
    work(pipe, *arguments)


def _follow(watched: Connection) -> None:
    """End at once when the parent ends or closes its end of the pipe. Checkpoints are complete at any instant."""
    with contextlib.suppress(EOFError, OSError):
        watched.recv()
    os._exit(1)  # sys.exit would end this thread alone


def run_jobs(runner: Runner, workers: int, setting: str, listener: Listener) -> None:
    """Run all jobs of a runner in `workers` processes; 1 runs them in this one. `setting` is the key that asked for
    processes.

    After the first error the other processes stop between two rounds, and the error is raised. A killed process counts
    as an error. If the runner records errors, its job goes to another process instead, and `listener` is told."""
    if workers < 2:
        runner.in_turn(range(len(runner.jobs)), listener)
        return
    metrics = pickled_sources(runner.metrics, setting)
    with spawned(f"{setting} = {workers}", workers, _work, runner, metrics, setting) as processes:
        _HandOut(runner, processes, setting, listener).run()


class _HandOut:
    """Hands jobs to free processes, and holds back those that wait for other jobs or other calls."""

    def __init__(
        self, runner: Runner, processes: Mapping[Connection, BaseProcess], setting: str, listener: Listener
    ) -> None:
        self._runner, self._processes, self._setting, self._listener = runner, processes, setting, listener
        self._queue = list(range(len(runner.jobs)))
        self._blocked: list[int] = []  # wait for other jobs or other calls
        self._looked = time.monotonic()  # when they were last handed out again
        self._free, self._busy = list(processes), dict[Connection, int]()
        # A process may find a trial of its cell missing that ends elsewhere before the process reports back. `_unblock`
        # has run by then, and nothing else might unblock such a job, so it is tried again at once.
        self._outdated = set[int]()
        self._error: Exception | None = None
        self._waited = False

    def run(self) -> None:
        """Hand out jobs until all have ended, or one has raised an error and the other processes have stopped."""
        while self._busy or (self._error is None and self._free and (self._queue or self._blocked)):
            while self._queue and self._free and self._error is None:
                pipe, position = self._free.pop(0), self._queue.pop(0)
                self._busy[pipe] = position
                _send(pipe, position)
            if not self._busy and not self._waited:
                self._waited = True
                self._listener(waiting(len(self._blocked)))
            looks = bool(self._blocked and self._free)  # other calls may have ended the jobs that block others
            for sender in wait(list(self._busy), PAUSE if looks else None):
                assert isinstance(sender, Connection)
                self._receive(sender)
            if looks and time.monotonic() - self._looked >= PAUSE:
                self._unblock()
        if self._error is not None:
            raise self._error

    def _receive(self, pipe: Connection) -> None:
        try:
            news: Event | bool | Exception | None = pipe.recv()
        except (EOFError, OSError):
            news = None
        if isinstance(news, Event):
            self._listener(news)
            return
        position = self._busy.pop(pipe)
        if news is None:
            self._queue.append(position)
            self._lost(self._processes[pipe])
            return
        self._free.append(pipe)
        if isinstance(news, Exception):
            self._stop(news)
        elif news:
            self._unblock()
            self._outdated.update(self._busy.values())
        elif position in self._outdated:
            self._queue.insert(0, position)
        else:
            self._blocked.append(position)
        self._outdated.discard(position)

    def _unblock(self) -> None:
        self._looked = time.monotonic()
        # In front, because they were handed out before the rest of the queue.
        self._queue[:0], self._blocked = self._blocked, []

    def _lost(self, process: BaseProcess) -> None:
        """Report a process that ended, unless it was asked to. Raises `ConfigError` if the script has no guard."""
        if self._error is not None:
            return
        ending = how_ended(process, self._setting) or "ended early"
        remaining = len(self._busy) + len(self._free)
        if self._runner.on_error == "record":
            rest = f"{remaining} still at work, and its cell is left to them" if remaining else "none is left"
            self._listener(Event(0, 0, note=f"a process of this call {ending}; {rest}"))
            return
        assert self._runner.folder is not None  # without one, there are no processes
        self._stop(
            RunFolderError(
                f"{self._runner.folder.path}: a process of this call {ending}; runs keep their checkpoints: call it "
                f"again to resume them, with fewer {self._setting} if memory is short"
            )
        )

    def _stop(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            for pipe in self._busy:
                _send(pipe, None)


def _send(pipe: Connection, news: int | Event | Exception | None) -> None:
    with contextlib.suppress(OSError):  # the process at the other end has died, which the next `recv` notices
        pipe.send(news)


def _work(pipe: Connection, runner: Runner, metrics: Mapping[str, bytes], setting: str) -> None:
    """Run the jobs that come through the pipe, in a child process, until another process's has raised an error."""
    lock = threading.Lock()  # a run may send notes from another thread

    def send(news: Event | bool | Exception) -> None:
        # The parent sends nothing to a busy process except the request to stop. Stop between two rounds.
        if isinstance(news, Event) and news.note is None and pipe.poll():
            raise SystemExit
        with lock:
            _send(pipe, news)

    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        while (position := pipe.recv()) is not None:
            try:
                register_pickled(metrics, setting)
                send(runner.attempt(position, send))
            except Exception as error:
                send(picklable_error(error))
