"""Clients of a round on threads of this process: their steps are replayed without Python, side by side.

Python begins and ends each client and takes the steps that cannot be replayed, one client at a time. All else runs in a
pool of threads. The thread that waits for a result takes steps too."""

import itertools
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.core.trees import nbytes
from fedloom.engine.client import ClientRound, Worker
from fedloom.engine.client_phases import Replay, SeparateMemory
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.serial import Engine, Jobs, SlowClientWatch
from fedloom.engine.speedups import HeldHeap
from fedloom.methods.contract.contexts import Diagnostic

# More Python than this, in shares of a thread's CPU time, and threads wait for it longer than processes would take to
# exchange tensors: a round takes 1.04 to 1.45 times as long in two processes as on two threads that need not wait.
_BOUND_SHARE = 1.3
# A round with more setup than this share of the work in Python says little of later rounds; there are but a few such.
_SETUP_SHARE, _SETUP_ROUNDS = 0.1, 10
# Clients per thread that wait for one. Where weights are small, several are begun in a row, while caches have what that
# needs; where they are large, few are begun before they can train.
_MIN_QUEUED, _MAX_QUEUED = 2, 8
_MAX_QUEUED_BYTES = 64 << 20  # of weights of all waiting clients


class Threads(Engine):
    """Run clients on `threads` threads, among them the one that calls `run`, with the bits of the serial engine. `note`
    is called from another thread; `testers` starts the engine that tests several models, None tests them here."""

    name = "threads"

    def __init__(
        self,
        worker: Worker,
        threads: int,
        note: Callable[[str], None] | None = None,
        testers: Callable[[], Engine] | None = None,
    ) -> None:
        self.worker, self.threads, self._testers = worker, threads, testers
        self._test_engine: Engine | None = None
        self._watch = SlowClientWatch(note)
        self._pool: Any | None = None
        self._heap = HeldHeap()
        size = max(1, *(nbytes(loaded_net.tree) for loaded_net in worker.loaded_nets))
        self._max_queued = threads * max(_MIN_QUEUED, min(_MAX_QUEUED, _MAX_QUEUED_BYTES // (size * threads)))
        self._running: dict[int, tuple[ClientRound, Replay]] = {}  # clients whose steps the pool has, by number
        self._obstacle_reported = False
        self._seconds_of_replays = 0.0  # that this thread took in the present round
        self.python_bound_rounds = 0  # latest rounds in a row whose length was that of the work in Python
        self.is_settling = False  # whether the latest round was one of much setup
        self._setup_rounds = 0  # of such rounds, so far

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        if not self.worker.speedups.threads_ready():  # still being compiled: clients take turns in this thread
            for job in jobs:
                self._watch.client_started(job)
                yield self.worker.run(job)
            return
        if self._pool is None:
            self._pool = self._start_pool()
            self._heap.hold()
        self._forget_clients()  # of a round that was not awaited
        running = self._running
        self._seconds_of_replays, before = 0.0, self._clocks()
        try:
            yield from self._run_in_pool(self._pool, iter(jobs))
            self._judge(*(now - earlier for now, earlier in zip(self._clocks(), before, strict=True)))
        finally:
            if self._running is running:  # else another round has begun since
                self._forget_clients()
            self._watch.round_ended()

    def _start_pool(self) -> Any:
        """Start the threads. Raises `ConfigError` if the system allows too few."""
        try:
            pool = self.worker.speedups.pool(self.threads)
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"engine.workers = {self.threads}: the system allows no more threads ({reason}); take fewer workers "
                "or engine: serial, or raise ulimit -u and ulimit -v"
            ) from None
        # Also before the interpreter ends: a thread that freed a tensor of Python afterwards would abort the process.
        self._end_pool = weakref.finalize(self, pool.close)
        return pool

    def _clocks(self) -> tuple[float, float, float]:
        """CPU seconds of this thread, of all threads, and of setup."""
        return time.thread_time(), time.process_time(), self.worker.stepper.setup_seconds

    def _judge(self, this_thread: float, all_threads: float, setup: float) -> None:
        """Note whether threads waited for Python in a round. Arguments are CPU seconds, as in `_clocks`."""
        in_python = this_thread - self._seconds_of_replays
        self.is_settling = setup > _SETUP_SHARE * in_python and self._setup_rounds < _SETUP_ROUNDS
        if self.is_settling:
            self._setup_rounds += 1
            return
        bound = self.threads > 1 and in_python * self.threads > _BOUND_SHARE * all_threads
        self.python_bound_rounds = self.python_bound_rounds + 1 if bound else 0

    def _forget_clients(self) -> None:
        if self._running and self._pool is not None:
            self._pool.drain()
        self._running = {}

    def _run_in_pool(self, pool: Any, jobs: Iterator[Job]) -> Iterator[JobResult]:
        number, waiting = 0, next(jobs, None)
        while True:
            # begin several clients in a row, and only once few wait for a thread
            most = self._max_queued if pool.waiting() < _MIN_QUEUED * self.threads else 0
            while waiting is not None and pool.waiting() < most:
                number += 1
                self._watch.client_started(waiting)
                client_round = self.worker.client_round(waiting, SeparateMemory)
                waiting = next(jobs, None)
                yield from self._continue(pool, number, client_round)
            if not self._running:
                return
            started = time.thread_time()
            done = pool.next()
            self._seconds_of_replays += time.thread_time() - started
            yield from self._continue(pool, done, self._running.pop(done)[0])

    def _continue(self, pool: Any, number: int, client_round: ClientRound) -> list[JobResult]:
        """Let Python continue with a client up to its next steps for the pool; return the result if it has ended."""
        try:
            replay = next(client_round)
        except StopIteration as stop:
            return [stop.value]
        self._running[number] = client_round, replay
        pool.submit(number, replay.job)
        return []

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        waiting = iter(tests)
        few = list(itertools.islice(waiting, 2))
        if len(few) < 2 or self._testers is None:
            return map(self.worker.test, itertools.chain(few, waiting))
        if self._test_engine is None:
            self._test_engine = self._testers()
        return self._test_engine.test(itertools.chain(few, waiting))

    def notes(self) -> list[Diagnostic]:
        """Return once why there are no threads, if compiling has failed since the engine was chosen."""
        obstacle = None if self._obstacle_reported else self.worker.speedups.threads_obstacle()
        if obstacle is None:
            return []
        self._obstacle_reported = True
        message = f"threads cannot be used ({obstacle}); clients are trained one after another in one process"
        return [Diagnostic("engine.threads", message, 1.0)]

    def close(self) -> None:
        if self._test_engine is not None:
            self._test_engine.close()
        self._watch.close()
        if self._pool is not None:
            self._end_pool()
            self._pool, self._running = None, {}
        self._heap.release()
