"""Child processes for whole runs. They share only a pipe each with the parent, so that none leaves a lock behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from fedloom.core.errors import ConfigError
from fedloom.core.interrupts import block_interrupts

Work: TypeAlias = Callable[..., None]  # called with the process's end of its pipe, and with `arguments`
_WITHOUT_GUARD = 79  # exit code of a process in which the imported script starts processes again


@contextlib.contextmanager
def spawned(setting: str, count: int, work: Work, *arguments: Any) -> Iterator[Mapping[Connection, BaseProcess]]:
    """Start processes that run `work(pipe, *arguments)`, and give them by the parent's ends of their pipes.

    The processes end with the block, or with this process, however it ends.

    Args:
        setting: the setting that asks for them, for messages ("jobs = 2").
        count: number of processes.
        work: a function at the top of a module, called in each process.
        arguments: further arguments of `work`, which are pickled.

    Raises `ConfigError` if this process may not start others.
    """
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
        held_open.close()  # ends the processes that still work, as when this process is killed
        watched.close()
        for pipe, process in processes.items():
            process.join()
            pipe.close()


def how_ended(process: BaseProcess, setting: str) -> str | None:
    """Return how a process that closed its pipe ended, in words that follow "a process"; None if it has done its work.

    Raises `ConfigError` if it could not work because the script has no guard.
    """
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
            f"{setting}: this process is daemonic, as those of a multiprocessing.Pool are, and may start no others; "
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
    os._exit(1)
