"""Worker processes: their main loop, and the parent's handle of one."""

import contextlib
import multiprocessing
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import NoReturn, TypeAlias

import torch

from fedloom.core.console import block_interrupts
from fedloom.core.errors import ClientError, picklable_error
from fedloom.core.process_settings import reproducible_settings
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.processes.shared_memory import NO_MEMORY, SharedMemory, dumps, loads
from fedloom.engine.serial import Engine, Serial
from fedloom.engine.speedups import keep_freed_memory
from fedloom.engine.stacked import Batched
from fedloom.methods.contract.contexts import Task

Request: TypeAlias = Job | EvalJob


def answer(requests: Sequence[Request], engine: Engine) -> list[JobResult | EvalResult] | Exception:
    """Let an engine execute jobs and tests; return their results, or the error of a client in a form that travels."""
    jobs = [request for request in requests if isinstance(request, Job)]
    tests = [request for request in requests if isinstance(request, EvalJob)]
    try:
        return [*engine.run(jobs), *engine.test(tests)]
    except ClientError as error:
        return picklable_error(error)


@dataclass(slots=True)
class WorkerProcess:
    """The work of a worker process, and all that it gets when it starts."""

    pipe: Connection
    inherited_pipes: list[Connection]  # ends of other workers' pipes, which a fork copied
    worker: Worker
    tasks: list[Task]
    orders: SharedMemory  # the parent writes it, with the tensors of jobs
    results: SharedMemory  # this process writes it
    stack: int  # clients that train side by side

    def serve(self) -> None:
        """Answer messages until the pipe closes."""
        for pipe in self.inherited_pipes:  # an open copy would hide from the other side that a pipe was closed
            pipe.close()
        with reproducible_settings():  # a spawned process imports the caller's script, which may change settings
            keep_freed_memory()
            worker = self.worker.copy()
            worker.allocate = self.results.empty_like
            engine: Engine = Serial(worker) if self.stack == 1 else Batched(worker, self.stack)
            threading.Thread(target=_follow_parent, daemon=True).start()
            with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
                while True:
                    self._answer(engine)
            _leave()

    def _answer(self, engine: Engine) -> None:
        fresh, requests = loads(self.pipe.recv_bytes(), self.orders, self.tasks)
        if fresh:
            self.results.clear()
        if requests:
            results = answer(requests, engine)
            # metric states outlive the round, so they travel as bytes
            memory = self.results if isinstance(requests[0], Job) and isinstance(results, list) else NO_MEMORY
            self.pipe.send_bytes(dumps(results, memory))
            # The parent passes it on to a successor of this process, which must not overwrite these results.
            self.pipe.send(self.results.used)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    _leave()


def _leave() -> NoReturn:
    os._exit(0)  # at once, without the parent's exit handlers


@dataclass(slots=True)
class WorkerHandle:
    """The parent's side of one worker process. started: time at which it began its current jobs."""

    process: BaseProcess
    pipe: Connection
    results: SharedMemory
    in_flight: deque[list[Request]] = field(default_factory=deque)
    started: float = 0.0
    late_reported: bool = False

    def starts(self) -> None:
        """Note the time at which the worker begins its next jobs."""
        self.started, self.late_reported = time.monotonic(), False

    @property
    def jobs(self) -> list[Request]:
        """All jobs sent to the worker and not answered yet."""
        return [job for jobs in self.in_flight for job in jobs]

    def close(self) -> None:
        """Free the descriptors and the memory of a process that has ended. Views of its results stay valid."""
        self.pipe.close()
        self.results.close()


def start_worker(
    worker: Worker,
    tasks: list[Task],
    orders: SharedMemory,
    results: SharedMemory | None,
    stack: int,
    siblings: Sequence[Connection],
) -> WorkerHandle:
    """Start a `WorkerProcess`, on the `results` of the worker that it replaces, if any; `siblings` are the parent's
    pipes to other workers. Raises `OSError` if the system allows no more, after closing all that was opened."""
    context, memory = _context(), results or SharedMemory()
    with contextlib.ExitStack() as unfinished:
        if results is None:
            unfinished.callback(memory.close)
        parent_end, child_end = context.Pipe()
        unfinished.callback(parent_end.close)
        unfinished.callback(child_end.close)
        inherited = [parent_end, *siblings] if context.get_start_method() == "fork" else []
        child = WorkerProcess(child_end, inherited, worker, tasks, orders, memory, stack)
        process = context.Process(target=child.serve, daemon=True)
        with block_interrupts(spawn=context.get_start_method() == "spawn"):
            process.start()
        unfinished.pop_all()
    child_end.close()
    return WorkerHandle(process, parent_end, memory)


def may_start_processes() -> bool:
    """Whether this process may start others: the daemonic processes of a `multiprocessing.Pool` may not."""
    return not multiprocessing.current_process().daemon


def _context() -> ForkContext | SpawnContext:
    """Fork on Linux, because forked workers share the data and start at once; spawn elsewhere, or once CUDA is used."""
    if platform.system() == "Linux" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")
