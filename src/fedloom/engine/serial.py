"""The interface of engines, and the serial engine, which is the reference for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from fedloom.core.records import Record
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.slow_clients import SlowClientWatch
from fedloom.methods.contract.contexts import Diagnostic


class Jobs(Protocol):
    """The jobs of a round in the order in which they start; each may be made on demand. A list is enough."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...


class Engine(Protocol):
    """Runs jobs and tests, and yields their results in any order."""

    @property
    def may_drop_clients(self) -> bool:
        """Whether `run` and `test` may leave out results of clients that were lost."""
        ...

    @property
    def name(self) -> str:
        """The engine's name in results."""
        ...

    @property
    def reason(self) -> str | None:
        """Why this engine was chosen; None if there was no choice."""
        ...

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Run the jobs of a round, and yield their results in any order. Raises `ClientError`."""
        ...

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Test models with the worker's evaluator, and yield the results in any order."""
        ...

    def keep(self, record: Record) -> Record:
        """Return `record` in memory that outlives the next `run`; results of `run` need not."""
        ...

    def notes(self) -> list[Diagnostic]:
        """Return diagnostics of the last `run`, e.g. that the engine had to change how it works."""
        ...

    def close(self) -> None:
        """Release processes and memory."""
        ...


class Serial:
    """Runs one client after another, so that one payload at a time is in memory.

    Args:
        note: called from another thread with a text about a client that takes long; None watches no client.
    """

    name = "serial"
    reason = None
    may_drop_clients = False

    def __init__(self, worker: Worker, note: Callable[[str], None] | None = None) -> None:
        self.worker, self._watch = worker, None if note is None else SlowClientWatch(note)

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Yield one result for each job. Raises `ClientError` at the first failure."""
        return map(self.worker.run, jobs) if self._watch is None else self._run_watched(jobs, self._watch)

    def _run_watched(self, jobs: Jobs, watch: SlowClientWatch) -> Iterator[JobResult]:
        try:
            for job in jobs:
                watch.client_started(job)
                yield self.worker.run(job)
        finally:
            watch.round_ended()

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Yield one result for each test. Raises `ClientError` if adapting fails."""
        return map(self.worker.test, tests)

    def keep(self, record: Record) -> Record:
        return record

    def notes(self) -> list[Diagnostic]:
        return []

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
