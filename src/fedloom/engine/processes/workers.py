"""Worker processes and the messages between them and their parent.

In a message, records become tensors in shared memory, and the rest stays as it is. It has the fields of its class in
`engine/jobs.py`, so a field that is added there reaches every worker.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import pickle
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from fedloom.core.console import block_interrupts
from fedloom.core.errors import ClientError, picklable_error
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.records import Record
from fedloom.engine.client import Worker
from fedloom.engine.jobs import BODY_FIELDS, EvalJob, EvalResult, Job, JobResult, field_types
from fedloom.engine.processes.shared_memory import (
    InlineTensor,
    Packed,
    Packer,
    SharedMemory,
    SharedTensor,
    from_inline,
    inline,
    unpack,
)
from fedloom.engine.serial import Engine, Serial
from fedloom.engine.speedups import keep_freed_memory
from fedloom.engine.stacked import Batched
from fedloom.methods.contract.contexts import ClientContext, Task

Request: TypeAlias = Job | EvalJob
Reply: TypeAlias = JobResult | EvalResult
R = TypeVar("R", bound=Request | Reply)


class PackedMessage(NamedTuple):
    """A job or a result. shared: the record that all clients of a round have in common. values: other fields."""

    kind: type
    shared: Packed
    values: dict[str, Any]


class _Context(NamedTuple):
    """A `ClientContext` without its task, which every worker has."""

    round: int
    client: int
    samples: int
    group: int
    class_counts: SharedTensor | InlineTensor


class _Pickler(pickle.Pickler):
    """Writes tensors as bytes: those of fields that are no records, such as the states of metrics.

    With torch's own reduction for `Connection.send`, each would take a file and a connection to a socket, whose folder
    stays in the temporary folder when a worker ends.
    """

    def reducer_override(self, value: Any) -> Any:
        return (from_inline, (inline(value),)) if isinstance(value, Tensor) else NotImplemented


def send(pipe: Connection, content: Any) -> None:
    """Send messages, or an error, to the other end of a pipe, which takes them with `Connection.recv`."""
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(content)
    pipe.send_bytes(buffer.getbuffer())


def packed(content: Request | Reply, packer: Packer) -> PackedMessage:
    """Write the tensors of a job or a result to the packer's memory, and return the message."""
    shared: Packed = {}
    values: dict[str, Any] = {}
    request = isinstance(content, Job | EvalJob)
    kind: Any = type(content)
    for name, type_ in field_types(kind).items():
        value = getattr(content, name)
        if name in BODY_FIELDS:
            shared = packer.pack(value)
        elif type_ == Record:
            values[name] = packer.pack(value, shared=not request)  # a client's own state is in no other message
        elif type_ is Tensor:
            values[name] = packer.locate(value)
        elif type_ is ClientContext:
            counts = packer.locate(value.class_counts)
            values[name] = _Context(value.round, value.client, value.samples, value.task.group, counts)
        else:
            values[name] = value
    return PackedMessage(kind, shared, values)


def unpacked(
    message: PackedMessage, view: Callable[[SharedTensor | InlineTensor], Tensor], tasks: Sequence[Task] = ()
) -> Any:
    """Return the job or result of a message, with views of the memory as tensors.

    Args:
        message: the message.
        view: returns a tensor for its location.
        tasks: one a group, for jobs.
    """
    arguments: dict[str, Any] = {}
    for name, type_ in field_types(cast(Any, message.kind)).items():
        if name in BODY_FIELDS:
            arguments[name] = unpack(message.shared, view)
        elif type_ == Record:
            arguments[name] = unpack(message.values[name], view)
        elif type_ is Tensor:
            arguments[name] = view(message.values[name])
        elif type_ is ClientContext:
            context = cast(_Context, message.values[name])
            counts = view(context.class_counts)
            task = tasks[context.group]
            arguments[name] = ClientContext(task, context.round, context.client, context.samples, counts)
        else:
            arguments[name] = message.values[name]
    return message.kind(**arguments)


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
