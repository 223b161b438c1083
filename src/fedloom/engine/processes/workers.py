"""Start worker processes and hold the parent's side of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import platform
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess

import torch

from fedloom.core.interrupts import block_interrupts
from fedloom.engine.client import Worker
from fedloom.engine.processes.messages import Request
from fedloom.engine.processes.shared_memory import SharedMemory
from fedloom.engine.processes.worker import serve
from fedloom.methods.contract.contexts import Task


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
    """Start a process that answers messages until its pipe closes.

    Args:
        worker: trains and tests in the process.
        tasks: one for each architecture group.
        orders: memory with the tensors of jobs.
        results: memory of the worker that it replaces, if any.
        stack: clients that train side by side.
        siblings: the parent's pipes to other workers.

    Raises `OSError` if the system allows no more descriptors or processes, after closing all that was opened.
    """
    context = _context()
    memory = results or SharedMemory()
    with contextlib.ExitStack() as unfinished:
        if results is None:
            unfinished.callback(memory.close)
        parent_end, child_end = context.Pipe()
        unfinished.callback(parent_end.close)
        unfinished.callback(child_end.close)
        inherited = [parent_end, *siblings] if context.get_start_method() == "fork" else []
        arguments = (child_end, inherited, worker, tasks, orders, memory, stack)
        process = context.Process(target=serve, args=arguments, daemon=True)
        with block_interrupts(spawn=context.get_start_method() == "spawn"):
            process.start()
        unfinished.pop_all()
    child_end.close()
    return WorkerHandle(process, parent_end, memory)


def may_start_processes() -> bool:
    """Whether this process may start others: the daemonic processes of a `multiprocessing.Pool` may not."""
    return not multiprocessing.current_process().daemon


def _context() -> ForkContext | SpawnContext:
    """Fork on Linux, because forked workers share the data and start at once; spawn elsewhere and beside CUDA."""
    if platform.system() == "Linux" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")
