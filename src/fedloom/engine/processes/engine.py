"""The parent's side of the processes engine: it hands out clients and takes in what they leave.

Workers live as long as the run. Payloads and results lie in memory that both sides map; through the pipes go only
places and small values. A worker that dies is replaced and its client started again: a client's round is a pure
function of its job. Workers end with their parent, however that ends, and leave nothing behind.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import platform
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.engine.client import Worker
from fedloom.engine.jobs import Done, Test, TestDone
from fedloom.engine.processes.messages import Asked, packed, unpacked
from fedloom.engine.processes.shared_memory import Packer, SharedMemory, lasting
from fedloom.engine.processes.worker import serve
from fedloom.engine.serial import Jobs
from fedloom.methods.facts import Finding, Task

_ATTEMPTS = 3  # of one client, if its worker dies under it
# Clients are handed out several at a time, fewer towards the end: up to this many, and this many times a worker.
_TOGETHER, _SHARES = 8, 4
_TESTS = 32  # for each worker, whose states lie in shared memory at once


class WorkerLost(RuntimeError):
    """A worker process died, or was ended because its client took too long."""


@dataclass(slots=True)
class _Hand:
    """One worker process, the parent's side. `since`: when it began the first of what it was given."""

    process: BaseProcess
    pipe: Connection
    results: SharedMemory
    given: deque[list[Asked]] = field(default_factory=deque)
    since: float = 0.0

    @property
    def jobs(self) -> list[Asked]:
        """All jobs that it has: those it works on, and those that wait in its pipe."""
        return [job for jobs in self.given for job in jobs]


@dataclass(slots=True)
class _Waiting:
    """Jobs that nobody has: `count` fresh ones, and `again`, which run alone: a worker died or hung under them."""

    fresh: Iterator[Asked]
    count: int
    again: list[Asked] = field(default_factory=list)
    troubled: bool = False  # a worker was lost: none has more than it works on

    def taken(self, share: int) -> list[Asked]:
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

    reason = None

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
        self._share = 0
        self._orders = SharedMemory()
        self._packer = Packer(self._orders)
        self._hands: list[_Hand] = []
        for _ in range(workers):
            self._hands.append(self._hire())

    def run(self, jobs: Jobs) -> Iterator[Done]:
        """Yields one `Done` per job as they finish. Raises `ClientError` at the first failure."""
        self._share = 0
        if self._width > 1:  # stacks of one size
            turns = -(-len(jobs) // (len(self._hands) * self._width))
            self._share = -(-len(jobs) // max(1, len(self._hands) * turns))
        yield from self._worked(_Waiting(iter(jobs), len(jobs)))

    def test(self, tests: Iterable[Test]) -> Iterator[TestDone]:
        """Yields one `TestDone` per test as they finish. Raises `ClientError` if adapting fails.

        What the last `run` yielded stays where it is. Some tests at a time: the states of all clients may be large.
        """
        self._share, each = 0, iter(tests)
        while some := list(itertools.islice(each, _TESTS * len(self._hands))):
            yield from self._worked(_Waiting(iter(some), len(some)), keep=True)

    def _worked(self, waiting: _Waiting, *, keep: bool = False) -> Iterator[Any]:
        """What workers leave of everything that waits. keep: results that came before are still wanted."""
        self._packer.clear()
        lost: dict[int, int] = {}
        for place, hand in enumerate(self._hands):
            if hand.given:  # a round before this one was not finished
                hand.process.kill()
                self._hands[place] = hand = self._hired_for(hand)
            self._give(hand, waiting, fresh=not keep)
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
    def _hire(self, results: SharedMemory | None = None) -> _Hand:
        context = _context()
        ours, theirs = context.Pipe()
        results = results or SharedMemory()
        inherited = [ours, *(hand.pipe for hand in self._hands)] if context.get_start_method() == "fork" else []
        arguments = (theirs, inherited, self._worker, self._tasks, self._orders, results, self._width)
        process = context.Process(target=serve, args=arguments, daemon=True)
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
            with contextlib.suppress(OSError):  # of one that is dead, which `_received` finds
                hand.pipe.send((fresh, [packed(job, self._packer) for job in jobs]))
        if jobs:
            hand.since = hand.since if hand.given else time.monotonic()
            hand.given.append(jobs)

    def _received(self, hand: _Hand) -> list[Any] | None:
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
        return [unpacked(left, view) for left in lefts]

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


def _named(jobs: list[Asked]) -> tuple[int, int]:
    """Client and round of a single job."""
    (job,) = jobs
    return job.ctx.client, job.ctx.round


def _context() -> ForkContext | SpawnContext:
    """Forked workers see the data without a copy and start at once; elsewhere, and beside CUDA, they are spawned."""
    if platform.system() == "Linux" and not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")
