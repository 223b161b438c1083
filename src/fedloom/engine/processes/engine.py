"""The processes engine: the parent sends jobs to worker processes and receives their results.

Workers live as long as the run. Records are written to shared memory; the pipes carry only offsets and small values. A
client's round depends on its job alone, so a worker that dies is replaced and its jobs are run again."""

import contextlib
import errno
import itertools
import multiprocessing
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn, TypeAlias

import torch

from fedloom.core.console import block_interrupts
from fedloom.core.errors import ClientError, ConfigError, picklable_error
from fedloom.core.process_settings import reproducible_settings
from fedloom.core.records import Record
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.processes.shared_memory import NO_MEMORY, SharedMemory, dumps, lasting, loads
from fedloom.engine.serial import PATIENCE, Engine, Jobs, Serial
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


_ATTEMPTS = 3  # runs of one client whose worker dies
# A chunk of jobs is at most `_LARGEST_CHUNK` long; a round has about `_CHUNKS` chunks a worker, smaller at its end.
_LARGEST_CHUNK, _CHUNKS = 8, 4
_TESTS_AT_ONCE = 32  # per worker, because their states are in shared memory at the same time


class WorkerLost(RuntimeError):
    """A worker process died, or was ended because its client took too long."""


@dataclass(slots=True)
class _Queue:
    """Jobs that no worker has: `count` pending ones, and `retries` of a dead worker's jobs, which run one by one."""

    pending: Iterator[Request]
    count: int
    retries: list[Request] = field(default_factory=list)
    after_worker_loss: bool = False  # hand out one job at a time, so that another loss costs one client only

    def next_jobs(self, chunk: int) -> list[Request]:
        if self.retries:
            return [self.retries.pop()]
        jobs = list(itertools.islice(self.pending, chunk))
        self.count -= len(jobs)
        return jobs


class Processes(Engine):
    """Run clients on worker processes of one thread each. Results of `run` are valid until the next `run`. A process
    trains `stack` clients together, as the batched engine does; 1 gives the serial engine's bits. Raises `ConfigError`
    if the system allows too few open files or processes."""

    name = "processes"

    def __init__(
        self,
        worker: Worker,
        tasks: Iterable[Task],
        *,
        workers: int,
        client_seconds: float | None = None,
        stack: int = 1,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name = "processes" if stack == 1 else "batched"
        self._worker, self._tasks, self._client_seconds, self._stack = worker, list(tasks), client_seconds, stack
        self._chunk, self._note = 0, note
        self._orders = SharedMemory()
        self._workers: list[WorkerHandle] = []
        try:
            for _ in range(workers):
                self._workers.append(self._start_worker())
        except OSError as error:
            self.close()
            if error.errno not in (errno.EMFILE, errno.EAGAIN, errno.ENOMEM):
                raise
            raise ConfigError(
                f"engine.workers = {workers}: the system allows no more open files or processes "
                f"({error.strerror}); take fewer workers or engine: serial, or raise ulimit -n and ulimit -u"
            ) from error
        except BaseException:  # Ctrl-C too: only this object can end the workers
            self.close()
            raise

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        self._chunk = 0
        if self._stack > 1:  # divide the jobs into stacks of equal size
            turns = -(-len(jobs) // (len(self._workers) * self._stack))
            self._chunk = -(-len(jobs) // max(1, len(self._workers) * turns))
        yield from self._executed(_Queue(iter(jobs), len(jobs)))

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Yield one result per test. They run in batches, because the states of all clients may be large."""
        self._chunk, waiting = 0, iter(tests)
        while some := list(itertools.islice(waiting, _TESTS_AT_ONCE * len(self._workers))):
            yield from self._executed(_Queue(iter(some), len(some)), keep=True)

    def _executed(self, queue: _Queue, *, keep: bool = False) -> Iterator[Any]:
        """Yield the results of all queued jobs as workers finish them. keep: results of earlier calls stay valid."""
        self._orders.clear()
        lost: dict[int, int] = {}
        for index, worker in enumerate(self._workers):
            if worker.in_flight:  # the last round was interrupted
                worker.process.kill()
                self._workers[index] = worker = self._restarted(worker)
            self._send(worker, queue, fresh=not keep)
        for worker in self._workers:  # a second chunk, so that none waits for the parent between two
            self._send(worker, queue)
        while busy := [worker for worker in self._workers if worker.in_flight]:
            wait([end for worker in busy for end in (worker.pipe, worker.process.sentinel)], self._timeout(busy))
            for index, worker in enumerate(self._workers):
                if not worker.in_flight:
                    continue
                try:
                    done = self._received(worker)
                except (EOFError, OSError):
                    self._workers[index] = self._replaced(worker, lost, queue)
                    continue
                if done is not None:
                    worker.in_flight.popleft()
                    worker.starts()
                    self._send(worker, queue)
                    yield from done

    def keep(self, record: Record) -> Record:
        """Return `record` with copies of the tensors that the next `run` would overwrite."""
        return lasting(record, [worker.results for worker in self._workers])

    def close(self) -> None:
        for worker in self._workers:
            worker.pipe.close()
        ends = time.monotonic() + 0.2
        for worker in self._workers:
            worker.process.join(timeout=max(0.0, ends - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.close()
        self._workers = []
        self._orders.close()

    # -- the parent's side ---------------------------------------------------------------------------------------
    def _start_worker(self, results: SharedMemory | None = None) -> WorkerHandle:
        siblings = [worker.pipe for worker in self._workers]
        return start_worker(self._worker, self._tasks, self._orders, results, self._stack, siblings)

    def _send(self, worker: WorkerHandle, queue: _Queue, *, fresh: bool = False) -> None:
        """Send jobs to an idle worker, or early to a busy one. fresh: it may overwrite its last round's results."""
        if fresh:
            worker.results.clear()
        few = len(self._workers) * _CHUNKS
        small = self._orders.reserved and worker.results.reserved  # large messages could fill both pipes, and block
        if worker.in_flight and (queue.count <= few or queue.after_worker_loss or not small):
            return
        jobs = queue.next_jobs(self._chunk or min(_LARGEST_CHUNK, -(-queue.count // few)))
        if jobs or fresh:
            with contextlib.suppress(OSError):  # a dead worker is noticed by `_received`
                worker.pipe.send_bytes(dumps((fresh, jobs), self._orders))
        if jobs:
            if not worker.in_flight:
                worker.starts()
            worker.in_flight.append(jobs)

    def _received(self, worker: WorkerHandle) -> list[Any] | None:
        """Return a worker's results, or None if there are none. Raises `EOFError` if it died, or its `ClientError`."""
        if not worker.pipe.poll():
            # it may have answered between the two looks, and died afterwards
            if not worker.process.is_alive() and not worker.pipe.poll():
                raise EOFError
            seconds = self._limit(worker)
            if time.monotonic() < self._due(worker):
                return None
            if seconds is None:
                self._tell(worker)
            else:
                worker.process.kill()
                if len(worker.jobs) > 1:
                    raise EOFError
                late = WorkerLost(f"took longer than engine.client_seconds = {seconds:g}; its process was ended")
                raise ClientError(*_named(worker.jobs), "running", late)
            return None
        results, worker.results.used = loads(worker.pipe.recv_bytes(), worker.results), worker.pipe.recv()
        if isinstance(results, Exception):
            raise results
        return results  # type: ignore[no-any-return]

    def _replaced(self, worker: WorkerHandle, lost: dict[int, int], queue: _Queue) -> WorkerHandle:
        """Replace a worker that died, and queue its jobs one by one, to learn which of them kills it."""
        worker.process.join()
        jobs = worker.jobs
        if len(jobs) == 1:
            client, round_ = _named(jobs)
            lost[client] = lost.get(client, 0) + 1
            if lost[client] >= _ATTEMPTS:
                exit_code = worker.process.exitcode
                dead = WorkerLost(f"its process died {_ATTEMPTS} times (exit code {exit_code}); out of memory?")
                raise ClientError(client, round_, "running", dead)
        new = self._restarted(worker)
        queue.retries += jobs
        queue.after_worker_loss = True
        self._send(new, queue)
        return new

    def _restarted(self, worker: WorkerHandle) -> WorkerHandle:
        worker.process.join()
        worker.pipe.close()
        return self._start_worker(worker.results)

    def _due(self, worker: WorkerHandle) -> float:
        """Time at which the worker's current jobs are overdue: at the time limit, or when a note is called for."""
        return worker.started + (self._limit(worker) or PATIENCE) * len(worker.in_flight[0])

    def _limit(self, worker: WorkerHandle) -> float | None:
        """Seconds for each of the worker's current jobs; None for no limit, which tests of the server's model have."""
        clients = (job.ctx.client for job in worker.in_flight[0])
        return None if min(clients) < 0 else self._client_seconds

    def _tell(self, worker: WorkerHandle) -> None:
        if not worker.late_reported:
            worker.late_reported, jobs = True, worker.in_flight[0]
            waited = f"round {jobs[0].ctx.round} has waited {time.monotonic() - worker.started:.0f} s"
            who = ", ".join(str(job.ctx.client) for job in jobs)
            clients = f"client{'s' if len(jobs) > 1 else ''} {who}; engine.client_seconds sets the longest time for one"
            self._note(f"{waited} for " + (clients if jobs[0].ctx.client >= 0 else "the test of the server's model"))

    def _timeout(self, busy: list[WorkerHandle]) -> float | None:
        """Seconds until the first worker is overdue; None if no worker can be."""
        first = min((self._due(worker) for worker in busy if not worker.late_reported), default=None)
        return None if first is None else max(0.0, first - time.monotonic()) + 0.01


def _named(jobs: list[Request]) -> tuple[int, int]:
    (job,) = jobs
    return job.ctx.client, job.ctx.round
