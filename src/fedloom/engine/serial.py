"""The serial engine: one live net, one client after another. The reference for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from fedloom.core.records import Record
from fedloom.engine.client import Worker
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.patience import Patience
from fedloom.methods.contract.contexts import Diagnostic


class Jobs(Protocol):
    """The work of a round in the order in which it is handed out, each made when it is asked for. A list will do."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...


class Engine(Protocol):
    """Runs jobs and yields what they leave, in any order."""

    @property
    def may_drop_clients(self) -> bool:
        """Whether clients may be lost: `run` and `test` then yield what those leave that are there."""
        ...

    @property
    def name(self) -> str:
        """What it is called in results."""
        ...

    @property
    def reason(self) -> str | None:
        """Why this engine, where there was a choice."""
        ...

    def run(self, jobs: Jobs) -> Iterator[JobResult]: ...

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Test personal models, in any order, as the worker's evaluator says."""
        ...

    def keep(self, record: Record) -> Record:
        """`record` as it may be kept: what `run` yields need not outlive the next `run`."""
        ...

    def notes(self) -> list[Diagnostic]:
        """What to tell of the last `run`: the engine had to change how it works."""
        ...

    def close(self) -> None:
        """Give back processes and memory."""
        ...


class Serial:
    """Takes each job as it is asked for, so that one payload at a time is alive.

    note: is told, from another thread, which client takes long; None watches nobody.
    """

    name = "serial"
    reason = None
    may_drop_clients = False

    def __init__(self, worker: Worker, note: Callable[[str], None] | None = None) -> None:
        self.worker, self._patience = worker, None if note is None else Patience(note)

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Yields one `JobResult` per job. Raises `ClientError` at the first failure."""
        return map(self.worker.run, jobs) if self._patience is None else self._watched(jobs, self._patience)

    def _watched(self, jobs: Jobs, patience: Patience) -> Iterator[JobResult]:
        try:
            for job in jobs:
                patience.begins(job)
                yield self.worker.run(job)
        finally:
            patience.rests()

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """Yields one `EvalResult` per test. Raises `ClientError` if adapting fails."""
        return map(self.worker.test, tests)

    def keep(self, record: Record) -> Record:
        return record

    def notes(self) -> list[Diagnostic]:
        return []

    def close(self) -> None:
        if self._patience is not None:
            self._patience.close()
