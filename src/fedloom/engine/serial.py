"""The interface of engines, the serial engine, which is the reference for all others, and its note on slow clients."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from fedloom.core.records import Record
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.methods.contract.contexts import Diagnostic

PATIENCE = 60.0  # seconds for one client


class SlowClientWatch:
    """Measures in a separate thread how long the current client takes, and gives `note` one line at most once a round.
    The thread starts with the first client and ends with `close`; without `note` there is none."""

    def __init__(self, note: Callable[[str], None] | None) -> None:
        self._note, self._closed = note, threading.Event()
        self._thread: threading.Thread | None = None
        self._job: Job | None = None
        self._started = 0.0

    def client_started(self, job: Job) -> None:
        """Start to measure the client of `job`."""
        if self._note is None:
            return
        # The time is set first: the thread never measures a new client from the start of the last one.
        self._started, self._job = time.monotonic(), job
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, args=(self._note,), daemon=True)
            self._thread.start()

    def round_ended(self) -> None:
        self._job = None

    def close(self) -> None:
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, note: Callable[[str], None]) -> None:
        remaining_seconds, noted_round = PATIENCE, 0
        while not self._closed.wait(remaining_seconds):
            job, waited, remaining_seconds = self._job, time.monotonic() - self._started, PATIENCE
            if job is None or job.ctx.round == noted_round:
                continue
            if waited < PATIENCE:
                remaining_seconds = PATIENCE - waited
            else:
                noted_round = job.ctx.round
                detail = "with engine: processes, engine.client_seconds sets the longest time for one"
                note(f"round {noted_round} has waited {waited:.0f} s for client {job.ctx.client}; {detail}")


class Jobs(Protocol):
    """The jobs of a round in the order in which they start; each may be made on demand. A list is enough."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...


class Engine(ABC):
    """Runs jobs and tests, and yields their results in any order."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The engine's name in results."""

    @property
    def reason(self) -> str | None:
        """Why this engine was chosen; None if there was no choice."""
        return None

    @abstractmethod
    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Run the jobs of a round, and yield their results in any order. Raises `ClientError` at the first failure."""

    @abstractmethod
    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Test models with the worker's evaluator, and yield the results in any order. Raises `ClientError`."""

    def keep(self, record: Record) -> Record:
        """Return `record` in memory that outlives the next `run`; results of `run` need not."""
        return record

    def notes(self) -> list[Diagnostic]:
        """Return diagnostics of the last `run`, e.g. that the engine had to change how it works."""
        return []

    def close(self) -> None:  # noqa: B027 - most engines hold nothing
        """Release processes and memory."""


class Serial(Engine):
    """Runs one client after another, so that one payload at a time is in memory. `note` is called from another thread
    with a text about a client that takes long; None watches no client."""

    name = "serial"

    def __init__(self, worker: Worker, note: Callable[[str], None] | None = None) -> None:
        self.worker, self._watch = worker, SlowClientWatch(note)

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        try:
            for job in jobs:
                self._watch.client_started(job)
                yield self.worker.run(job)
        finally:
            self._watch.round_ended()

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        return map(self.worker.test, tests)

    def close(self) -> None:
        self._watch.close()
