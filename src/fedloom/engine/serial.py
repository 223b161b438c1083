"""The serial engine: one live net, one client after another. The reference for all others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fedloom.core.records import Record
from fedloom.engine.client import Done, Job, Worker
from fedloom.methods.method import Finding


class Jobs(Protocol):
    """The work of a round, the largest first, each made when it is asked for. A list will do."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Job]: ...


class Engine(Protocol):
    """Runs jobs and yields what they leave, in any order."""

    name: str

    @property
    def native(self) -> bool:
        """Whether clients train with native kernels (`Net.native`)."""
        ...

    def run(self, jobs: Jobs) -> Iterator[Done]: ...

    def keep(self, record: Record) -> Record:
        """`record` as it may be kept: what `run` yields need not outlive the next `run`."""
        ...

    def notes(self) -> list[Finding]:
        """What to tell of the last `run`: the engine had to change how it works."""
        ...

    def hurry(self, on: bool) -> None:
        """Whether steps are recorded as soon as they repeat (`engine/recorded.py`): in a trial for a long run."""
        ...

    def close(self) -> None:
        """Give back processes and memory."""
        ...


class Serial:
    """Takes each job as it is asked for, so that one payload at a time is alive."""

    name = "serial"

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    @property
    def native(self) -> bool:
        return self.worker.native

    def run(self, jobs: Jobs) -> Iterator[Done]:
        """Yields one `Done` per job. Raises `ClientError` at the first failure."""
        return map(self.worker.run, jobs)

    def keep(self, record: Record) -> Record:
        return record

    def notes(self) -> list[Finding]:
        return []

    def hurry(self, on: bool) -> None:
        self.worker.recorder.hurried = on

    def close(self) -> None:
        pass
