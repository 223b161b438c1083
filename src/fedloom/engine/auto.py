"""The engine that finds out which engine is fastest: it compares whole rounds of the run itself.

No trial can tell what a run will be like: start-up, other work on the machine and what is made once weigh more than the
training in it. So real rounds are timed, and nothing is decided for good: every now and then the others get a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.serial import Engine, Jobs
from fedloom.methods.contract.contexts import Diagnostic

# Rounds between two looks at another engine, so many times as many as it is slower: looking costs little then.
_PATIENCE = 20
# A run shorter than this takes the first engine throughout: a look would cost more than it could save.
_SHORTEST = 8
_REMEMBERED = 3  # rounds by which an engine is judged


@dataclass(slots=True)
class Candidate:
    """An engine that may be taken. `make` starts it when its first round comes; words: how it works.

    reference: it has the serial engine's bits, and so must run whatever that runs; the others may fail. timed: rounds
    before it is compared, the first of which also pays for its start-up.
    """

    words: str
    make: Callable[[], Engine]
    reference: bool = True
    timed: int = 2
    engine: Engine | None = None
    seconds: list[float] = field(default_factory=list)  # a sample, of its last rounds
    rounds: int = 0
    looked: int = 0  # the run's round when it last had one

    @property
    def speed(self) -> float:
        """Seconds a sample: the least of its last rounds, which other work disturbed least."""
        return min(self.seconds)


class Auto:
    """Runs each round on one of the `candidates`, the first one first. rounds: that are to come."""

    may_drop_clients = False

    def __init__(self, candidates: Sequence[Candidate], rounds: int) -> None:
        self._candidates, self._rounds = list(candidates), rounds
        self._round, self._now, self._failures = 0, self._candidates[0], list[str]()

    @property
    def name(self) -> str:
        """The engine of the present round."""
        return self._started(self._now).name

    @property
    def reason(self) -> str | None:
        """What was measured, in a line; None where there was no choice."""
        told = [f"{c.speed * 1e6:.1f} us a sample {c.words} ({c.rounds} rounds)" for c in self._candidates if c.seconds]
        return "whole rounds took " + ", ".join([*told, *self._failures]) if len(told) > 1 else None

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        """Yields one `JobResult` per job. Raises `ClientError` at the first failure."""
        self._round += 1
        self._now = self._next()
        began, samples = time.perf_counter(), 0
        for done in self._started(self._now).run(jobs) if self._now.reference else self._tried(list(jobs)):
            samples += done.samples
            yield done
        if samples:
            self._now.seconds = [*self._now.seconds, (time.perf_counter() - began) / samples][-_REMEMBERED:]
            self._now.rounds += 1  # one without a sample says nothing
        self._now.looked = self._round

    def _tried(self, jobs: list[Job]) -> list[JobResult]:
        """A round on a candidate that may fail; then on the first, which may not."""
        try:
            return list(self._started(self._now).run(jobs))
        except ClientError as error:
            self._dismiss(self._now, str(error))
            self._now = self._candidates[0]
            return list(self._started(self._now).run(jobs))

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        """As the engine of the present round does."""
        return self._started(self._now).test(tests)

    def keep(self, record: Record) -> Record:
        """`record` as it may be kept, whatever engine the next round has."""
        return self._started(self._now).keep(record)

    def notes(self) -> list[Diagnostic]:
        return self._started(self._now).notes()

    def close(self) -> None:
        """Give back what all engines hold."""
        for candidate in self._candidates:
            if candidate.engine is not None:
                candidate.engine.close()

    def _next(self) -> Candidate:
        """The candidate of this round: the best so far, or one that has not been looked at for long."""
        first, *others = self._candidates
        if self._rounds < _SHORTEST or not others:
            return first
        new = [candidate for candidate in self._candidates if candidate.rounds < candidate.timed]
        if new:
            return new[0]
        best = min(self._candidates, key=lambda candidate: candidate.speed)
        for candidate in self._candidates:
            wait = _PATIENCE * candidate.speed / best.speed
            if candidate is not best and self._round - candidate.looked > wait and self._rounds - self._round > wait:
                return candidate
        return best

    def _started(self, candidate: Candidate) -> Engine:
        if candidate.engine is None:
            candidate.engine = candidate.make()
        return candidate.engine

    def _dismiss(self, candidate: Candidate, why: str) -> None:
        self._candidates.remove(candidate)
        self._failures.append(f"{candidate.words} cannot run this: {why}")
        if candidate.engine is not None:
            candidate.engine.close()
