"""Worker processes as their parent starts and holds them."""

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
    """One worker process, the parent's side. `started`: when it began the first of what it was given; `told`: that it
    takes long."""

    process: BaseProcess
    pipe: Connection
    results: SharedMemory
    in_flight: deque[list[Request]] = field(default_factory=deque)
    started: float = 0.0
    late_reported: bool = False

    def starts(self) -> None:
        """It begins with something."""
        self.started, self.late_reported = time.monotonic(), False

    @property
    def jobs(self) -> list[Request]:
        """All jobs that it has: those it works on, and those that wait in its pipe."""
        return [job for jobs in self.in_flight for job in jobs]

    def close(self) -> None:
        """Give back the descriptors and the memory of a process that has ended. Views of its results stay valid."""
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
    """Start a process that serves until its pipe closes. results: the memory of the process that it replaces.

    siblings: the parent's pipes to other workers. What a failed start has opened is closed. Raises `OSError` where the
    system allows no more descriptors or processes.
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
        with block_interrupts():
            process.start()
        unfinished.pop_all()
    child_end.close()
    return WorkerHandle(process, parent_end, memory)


def may_start_processes() -> bool:
    """Whether this process may have children: those of a `multiprocessing.Pool` are daemonic, and may not."""
    return not multiprocessing.current_process().daemon


def _context() -> ForkContext | SpawnContext:
    """Forked workers see the data without a copy and start at once; elsewhere, and beside CUDA, they are spawned."""
    if platform.system() == "Linux" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")
