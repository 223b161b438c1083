"""Runs the jobs of a runner in several processes, one job at a time in each.

Parent and child share only a pipe, because a process that dies must not leave a lock behind."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from fedloom.core.console import block_interrupts
from fedloom.core.errors import ConfigError, RunFolderError, picklable_error
from fedloom.evaluation.own_metrics import pickled_sources, register_pickled
from fedloom.runs.studies.live_progress import Event, Listener, waiting
from fedloom.runs.studies.runner import PAUSE, Runner

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
