"""The processes engine: clients of a round on several cores, with the bits of the serial one.

Workers live as long as the run. Payloads and results lie in memory that both sides map; through the pipes go only
places and small values. A worker that dies is replaced and its client started again: a client's round is a pure
function of its job. Workers end with their parent, however that ends, and leave nothing behind.
"""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import pickle
import platform
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.engine.arena import Arena, Packed, Packer, Place, lasting, unpack
from fedloom.engine.batched import Batched
from fedloom.engine.client import Done, Job, Worker
from fedloom.engine.memory import keep_freed
from fedloom.engine.serial import Engine, Jobs, Serial
from fedloom.methods.method import ClientContext, Finding, Task

_ATTEMPTS = 3  # of one client, if its worker dies under it
# Clients are handed out several at a time, fewer towards the end: up to this many, and this many times a worker.
_TOGETHER, _SHARES = 8, 4


class WorkerLost(RuntimeError):
    """A worker process died, or was ended because its client took too long."""


class _Order(NamedTuple):
    """A job as it crosses: tensors are places in the parent's arena, the task is known over there."""

    round: int
    client: int
    samples: int
    group: int
    class_counts: Place
    indices: Place
    payload: Packed
    state: Packed
    probe: bool


class _Left(NamedTuple):
    """What a client leaves, as it crosses: a `Done` with places in the worker's arena for tensors."""

    client: int
    payload: Packed
    state: Packed
    terms: Mapping[str, float]
    steps: int
    samples: int
    seconds: float
    norms: Mapping[str, float]


@dataclass(slots=True)
class _Hand:
    """One worker process, the parent's side. `since`: when it began the first of what it was given."""

    process: BaseProcess
    pipe: Connection
    results: Arena
    given: deque[list[Job]] = field(default_factory=deque)
    since: float = 0.0

    @property
    def jobs(self) -> list[Job]:
        """All jobs that it has: those it works on, and those that wait in its pipe."""
        return [job for jobs in self.given for job in jobs]


@dataclass(slots=True)
class _Waiting:
    """Jobs that nobody has: `count` fresh ones, and `again`, which run alone: a worker died or hung under them."""

    fresh: Iterator[Job]
    count: int
    again: list[Job] = field(default_factory=list)
    troubled: bool = False  # a worker was lost: none has more than it works on

    def taken(self, share: int) -> list[Job]:
        """Up to `share` jobs, or one that must run alone."""
        if self.again:
            return [self.again.pop()]
        jobs = list(itertools.islice(self.fresh, share))
        self.count -= len(jobs)
        return jobs


class Processes:
    """Runs clients on `workers` processes of one thread each. They start before the last jobs are made.

    client_seconds: longest time for one client; None waits for ever. width: clients that a process trains at once, as
    the batched engine does; 1 has the bits of the serial engine. What `run` yields lives until the next `run`.
    """

    def __init__(
        self,
        worker: Worker,
        tasks: Iterable[Task],
        *,
        workers: int,
        client_seconds: float | None = None,
        width: int = 1,
    ) -> None:
        self.name = "processes" if width == 1 else "batched"
        self._worker, self._tasks, self._client_seconds, self._width = worker, list(tasks), client_seconds, width
        self._share, self._hurried = 0, False
        self._orders = Arena()
        self._packer = Packer(self._orders)
        self._hands: list[_Hand] = []
        for _ in range(workers):
            self._hands.append(self._hire())

    @property
    def native(self) -> bool:
        return self._worker.native

    def run(self, jobs: Jobs) -> Iterator[Done]:
        """Yields one `Done` per job as they finish. Raises `ClientError` at the first failure."""
        self._packer.clear()
        waiting = _Waiting(iter(jobs), len(jobs))
        lost: dict[int, int] = {}
        if self._width > 1:  # stacks of one size
            turns = -(-waiting.count // (len(self._hands) * self._width))
            self._share = -(-waiting.count // max(1, len(self._hands) * turns))
        for place, hand in enumerate(self._hands):
            if hand.given:  # a round before this one was not finished
                hand.process.kill()
                self._hands[place] = hand = self._hired_for(hand)
            self._give(hand, waiting, fresh=True)
        for hand in self._hands:
            self._give(hand, waiting)
        while busy := [hand for hand in self._hands if hand.given]:
            wait([*(hand.pipe for hand in busy), *(hand.process.sentinel for hand in busy)], self._patience(busy))
            for place, hand in enumerate(self._hands):
                if not hand.given:
                    continue
                try:
                    done = self._received(hand)
                except (EOFError, OSError):
                    self._hands[place] = self._replaced(hand, lost, waiting)
                    continue
                if done is not None:
                    hand.given.popleft()
                    hand.since = time.monotonic()
                    self._give(hand, waiting)
                    yield from done

    def keep(self, record: Record) -> Record:
        """`record` with copies of what would not outlive the next `run`."""
        return lasting(record, [hand.results for hand in self._hands])

    def notes(self) -> list[Finding]:
        return []

    def hurry(self, on: bool) -> None:
        self._hurried = on

    def close(self) -> None:
        """End all workers."""
        for hand in self._hands:
            hand.pipe.close()
        for hand in self._hands:
            hand.process.join(timeout=0.2)
            if hand.process.is_alive():
                hand.process.kill()
                hand.process.join()
        self._hands = []

    # -- the parent's side ---------------------------------------------------------------------------------------
    def _hire(self, results: Arena | None = None) -> _Hand:
        context = _context()
        ours, theirs = context.Pipe()
        results = results or Arena()
        inherited = [ours, *(hand.pipe for hand in self._hands)] if context.get_start_method() == "fork" else []
        arguments = (theirs, inherited, self._worker, self._tasks, self._orders, results, self._width)
        process = context.Process(target=_serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return _Hand(process, ours, results)

    def _give(self, hand: _Hand, waiting: _Waiting, *, fresh: bool = False) -> None:
        """Hand out the largest jobs that wait, to a worker that has none, or, while there are many, before it is idle.

        fresh: the worker's results of the last round are done with.
        """
        if fresh:
            hand.results.clear()
        few = len(self._hands) * _SHARES
        if hand.given and (waiting.count <= few or waiting.troubled):
            return
        jobs = waiting.taken(self._share or min(_TOGETHER, -(-waiting.count // few)))
        if jobs or fresh:
            hand.pipe.send((fresh, self._hurried, [self._order(job) for job in jobs]))
        if jobs:
            hand.since = hand.since if hand.given else time.monotonic()
            hand.given.append(jobs)

    def _order(self, job: Job) -> _Order:
        ctx, pack = job.ctx, self._packer
        return _Order(
            ctx.round,
            ctx.client,
            ctx.samples,
            ctx.task.group,
            pack.place(ctx.class_counts),
            pack.place(job.indices),
            pack.pack(job.payload),
            pack.pack(job.state, shared=False),
            job.probe,
        )

    def _received(self, hand: _Hand) -> list[Done] | None:
        """What a worker has sent, if anything. Raises `EOFError` if it is dead, `ClientError` if its client failed."""
        if not hand.pipe.poll():
            if not hand.process.is_alive() and not hand.pipe.poll():
                raise EOFError
            seconds = self._client_seconds
            if seconds is not None and time.monotonic() - hand.since > seconds * len(hand.given[0]):
                hand.process.kill()
                if len(hand.jobs) > 1:
                    raise EOFError
                late = WorkerLost(f"took longer than engine.client_seconds = {seconds:g}; its process was ended")
                raise ClientError(*_named(hand.jobs), "running", late)
            return None
        answer = hand.pipe.recv()
        if isinstance(answer, ClientError):
            raise answer
        lefts, hand.results.used = answer
        view = hand.results.view
        return [Done(client, unpack(sent, view), unpack(kept, view), *rest) for client, sent, kept, *rest in lefts]

    def _replaced(self, hand: _Hand, lost: dict[int, int], waiting: _Waiting) -> _Hand:
        """A new worker for one that died, and its jobs again: several one by one, to know which of them it is."""
        hand.process.join()
        jobs = hand.jobs
        if len(jobs) == 1:
            client, round_ = _named(jobs)
            lost[client] = lost.get(client, 0) + 1
            if lost[client] >= _ATTEMPTS:
                exit_code = hand.process.exitcode
                dead = WorkerLost(f"its process died {_ATTEMPTS} times (exit code {exit_code}); out of memory?")
                raise ClientError(client, round_, "running", dead)
        new = self._hired_for(hand)
        waiting.again += jobs
        waiting.troubled = True
        self._give(new, waiting)
        return new

    def _hired_for(self, hand: _Hand) -> _Hand:
        """A new worker in place of one that is dead or dying; the results it has sent stay where they are."""
        hand.process.join()
        hand.pipe.close()
        return self._hire(hand.results)

    def _patience(self, busy: list[_Hand]) -> float | None:
        if self._client_seconds is None:
            return None
        first = min(hand.since + self._client_seconds * len(hand.given[0]) for hand in busy)
        return max(0.0, first - time.monotonic()) + 0.01


def _named(jobs: list[Job]) -> tuple[int, int]:
    """Client and round of a single job."""
    (job,) = jobs
    return job.ctx.client, job.ctx.round


def _context() -> ForkContext | SpawnContext:
    """Forked workers see the data without a copy and start at once; elsewhere, and beside CUDA, they are spawned."""
    if platform.system() == "Linux" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


# -- a worker's side -------------------------------------------------------------------------------------------------
def _serve(
    pipe: Connection,
    not_ours: list[Connection],
    worker: Worker,
    tasks: list[Task],
    orders: Arena,
    results: Arena,
    width: int,
) -> None:
    """Work until the pipe closes."""
    for other in not_ours:  # inherited by fork: while they are open here, their other ends never see an end
        other.close()
    torch.set_num_threads(1)
    keep_freed()
    worker = worker.twin()  # spawned processes would share the parent's nets
    worker.room = results
    engine: Engine = Serial(worker) if width == 1 else Batched(worker, width)
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        while True:
            fresh, hurried, given = pipe.recv()
            engine.hurry(hurried)
            if fresh:
                results.clear()
            if given:
                view = functools.cache(orders.view)  # of what clients have in common, once
                pipe.send(_answer([_job(order, tasks, view) for order in given], engine, results))
    except (EOFError, OSError, KeyboardInterrupt):
        _leave()


def _job(order: _Order, tasks: list[Task], view: Callable[[Place], Tensor]) -> Job:
    ctx = ClientContext(tasks[order.group], order.round, order.client, order.samples, view(order.class_counts))
    payload, state = unpack(order.payload, view), unpack(order.state, view)
    return Job(ctx, payload, state, view(order.indices), order.probe)


def _answer(jobs: list[Job], engine: Engine, results: Arena) -> Any:
    try:
        finished = list(engine.run(jobs))
    except ClientError as error:
        return _portable(error)
    pack = Packer(results).pack
    lefts = [
        _Left(d.client, pack(d.payload), pack(d.state), d.terms, d.steps, d.samples, d.seconds, d.norms)
        for d in finished
    ]
    return lefts, results.used


def _portable(error: ClientError) -> ClientError:
    """The error with its traceback as a note, because tracebacks do not cross, and with a cause that does."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.dumps(error)
    except Exception:  # an exception class that cannot be pickled, whatever it raises then
        error = ClientError(error.client, error.round, error.stage, RuntimeError(repr(error.__cause__)))
    error.add_note(text)
    return error


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    _leave()


def _leave() -> NoReturn:
    """End at once, without the parent's exit handlers."""
    os._exit(0)
