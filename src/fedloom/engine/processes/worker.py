"""A worker process: it runs the clients that its parent sends until the parent ends."""

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
from fedloom.engine.processes.messages import Request, packed, send, unpacked
from fedloom.engine.processes.shared_memory import Packer, SharedMemory
from fedloom.engine.serial import Engine, Serial
from fedloom.engine.stacked import Batched
from fedloom.methods.contract.contexts import Task


def serve(
    pipe: Connection,
    inherited_pipes: list[Connection],
    worker: Worker,
    tasks: list[Task],
    orders: SharedMemory,
    results: SharedMemory,
    stack: int,
) -> None:
    """Answer messages until the pipe closes.

    Args:
        pipe: this worker's end of its pipe.
        inherited_pipes: ends of other workers' pipes, which a fork copied.
        worker: is copied, because its nets may be in memory that is shared with the parent.
        tasks: one for each architecture group.
        orders: memory that the parent writes, with the tensors of jobs.
        results: memory that this process writes, with the tensors of results.
        stack: clients that train side by side; 1 trains one after another.
    """
    for sibling_pipe in inherited_pipes:  # an open copy would hide from the other side that a pipe was closed
        sibling_pipe.close()
    with reproducible_settings():  # a spawned process imports the caller's script, which may change settings
        _serve(pipe, worker, tasks, orders, results, stack)


def _serve(
    pipe: Connection, worker: Worker, tasks: list[Task], orders: SharedMemory, results: SharedMemory, stack: int
) -> None:
    keep_freed_memory()
    worker = worker.copy()  # nets may be in memory that is shared with the parent
    worker.allocate = results.empty_like
    engine: Engine = Serial(worker) if stack == 1 else Batched(worker, stack)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        while True:
            fresh, messages = pipe.recv()
            if fresh:
                results.clear()
            if messages:
                view = functools.cache(orders.view)  # builds each tensor that clients have in common once
                requests = [unpacked(message, view, tasks) for message in messages]
                send(pipe, answer(requests, engine, results))
    except (EOFError, OSError, KeyboardInterrupt):
        _leave()


def answer(requests: Sequence[Request], engine: Engine, results: SharedMemory) -> Any:
    """Return the results of jobs as messages, with the bytes of memory in use; or the error of a client.

    Args:
        requests: jobs and evaluation jobs.
        engine: executes them.
        results: memory that the tensors of results go to.
    """
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
