"""A worker process: it runs the clients that it is given until its parent is gone."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fedloom.core.errors import ClientError, picklable_error
from fedloom.core.process_settings import reproducible_settings
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.memory import keep_freed_memory
from fedloom.engine.processes.messages import Request, packed, unpacked
from fedloom.engine.processes.shared_memory import Packer, SharedMemory
from fedloom.engine.serial import Engine, Serial
from fedloom.engine.stacked import Batched
from fedloom.methods.contract.contexts import Task


def serve(
    pipe: Connection,
    not_ours: list[Connection],
    worker: Worker,
    tasks: list[Task],
    orders: SharedMemory,
    results: SharedMemory,
    stack: int,
) -> None:
    """Work until the pipe closes."""
    for sibling_pipe in not_ours:  # inherited by fork: while they are open here, their other ends never see an end
        sibling_pipe.close()
    with reproducible_settings():  # a process that is spawned imports the caller's script, which may change some
        _serve(pipe, worker, tasks, orders, results, stack)


def _serve(
    pipe: Connection, worker: Worker, tasks: list[Task], orders: SharedMemory, results: SharedMemory, stack: int
) -> None:
    keep_freed_memory()
    worker = worker.copy()  # spawned processes would share the parent's nets
    worker.allocate = results.empty_like
    engine: Engine = Serial(worker) if stack == 1 else Batched(worker, stack)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        while True:
            fresh, messages = pipe.recv()
            if fresh:
                results.clear()
            if messages:
                view = functools.cache(orders.view)  # of what clients have in common, once
                pipe.send(answer([unpacked(message, view, tasks) for message in messages], engine, results))
    except (EOFError, OSError, KeyboardInterrupt):
        _leave()


def answer(requests: Sequence[Request], engine: Engine, results: SharedMemory) -> Any:
    """The results of jobs as messages, and the bytes of memory that they use; or the error that ended them."""
    jobs = [request for request in requests if isinstance(request, Job)]
    tests = [request for request in requests if isinstance(request, EvalJob)]
    try:
        finished: list[JobResult | EvalResult] = [*engine.run(jobs), *engine.test(tests)]
    except ClientError as error:
        return picklable_error(error)
    packer = Packer(results)
    return [packed(result, packer) for result in finished], results.used


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    _leave()


def _leave() -> NoReturn:
    """End at once, without the parent's exit handlers."""
    os._exit(0)
