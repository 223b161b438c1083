"""The engine that finds the fastest engine by comparing whole rounds of the run itself.

A short trial would mislead, because start-up and other work on the machine weigh more in it than training. So real
rounds are timed, and from time to time the other engines get another round."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.serial import Engine, Jobs
from fedloom.methods.contract.contexts import Diagnostic

# An engine gets another round after this many rounds, times how much slower it is, so that trying it costs little.
_ROUNDS_BETWEEN_TRIALS = 20
_MIN_ROUNDS = 8  # shorter runs keep the first engine: a trial would cost more than it could save
_SETTLED_ROUNDS = 2  # after these, a preferred engine must do what makes it fast
_TIMED_ROUNDS = 3  # latest rounds by which an engine is judged


@dataclass(slots=True)
class Candidate:
    """An engine that may be chosen. One with `ready` is taken without a comparison, for as long as it `serves`."""

    description: str  # how it works, for `Auto.reason`
    start: Callable[[], Engine]  # called before its first round
    is_reference: bool = True  # it has the bits of the serial engine, and runs whatever that runs; others may fail
    trial_rounds: int = 2  # before it is compared; the first one includes its start-up
    ready: Callable[[], bool] | None = None  # whether it can run now; None compares it
    serves: Callable[[Engine], bool] = lambda engine: True  # whether it was fast in its latest rounds
    engine: Engine | None = None
    seconds: list[float] = field(default_factory=list)  # for each sample, in its latest rounds
    rounds: int = 0
    last_round: int = 0  # of the run, in which it ran last

    @property
    def seconds_per_sample(self) -> float:
        """The minimum over its latest rounds, which other work on the machine disturbed least."""
        return min(self.seconds)


class Auto(Engine):
    """Runs each of the `rounds` that remain on one of the candidates, beginning with the first that is compared."""

    def __init__(self, candidates: Sequence[Candidate], rounds: int) -> None:
        self._preferred = [candidate for candidate in candidates if candidate.ready is not None]
        self._candidates = [candidate for candidate in candidates if candidate.ready is None]
        self._rounds, self._all = rounds, list(candidates)
        self._round, self._current, self._failures = 0, self._next_candidate(), list[str]()

    @property
    def name(self) -> str:
        return self._engine(self._current).name

    @property
    def reason(self) -> str | None:
        times = [
            f"{c.seconds_per_sample * 1e6:.1f} us a sample {c.description} ({c.rounds} rounds)"
            for c in [*self._preferred, *self._candidates]
            if c.seconds
        ]
        return "whole rounds took " + ", ".join([*times, *self._failures]) if len(times) > 1 else None

    def run(self, jobs: Jobs) -> Iterator[JobResult]:
        self._round += 1
        self._current = self._next_candidate()
        started, samples = time.perf_counter(), 0
        is_reference = self._current.is_reference
        for result in self._engine(self._current).run(jobs) if is_reference else self._run_or_dismiss(list(jobs)):
            samples += result.samples
            yield result
        if samples:
            seconds = (time.perf_counter() - started) / samples
            self._current.seconds = [*self._current.seconds, seconds][-_TIMED_ROUNDS:]
            self._current.rounds += 1
        self._current.last_round = self._round

    def _run_or_dismiss(self, jobs: list[Job]) -> list[JobResult]:
        """Run a round on a candidate that may fail; if it fails, dismiss it and run the round on the first one."""
        try:
            return list(self._engine(self._current).run(jobs))
        except ClientError as error:
            self._dismiss(self._current, str(error))
            self._current = self._candidates[0]
            return list(self._engine(self._current).run(jobs))

    def test(self, tests: Iterable[EvalJob]) -> Iterator[EvalResult]:
        return self._engine(self._current).test(tests)

    def keep(self, record: Record) -> Record:
        return self._engine(self._current).keep(record)

    def notes(self) -> list[Diagnostic]:
        return self._engine(self._current).notes()

    def close(self) -> None:
        for candidate in self._all:
            if candidate.engine is not None:
                candidate.engine.close()

    def _next_candidate(self) -> Candidate:
        """The candidate of this round: the preferred one, the fastest so far, or one that has not run for long."""
        for candidate in list(self._preferred):
            if candidate.rounds >= _SETTLED_ROUNDS and not candidate.serves(self._engine(candidate)):
                self._preferred.remove(candidate)
                self._candidates.append(candidate)
            elif candidate.ready is not None and candidate.ready():
                return candidate
        # the others are tried once in the order of the list, then again after waits in proportion to their slowness
        if self._rounds < _MIN_ROUNDS or len(self._candidates) == 1:
            return self._candidates[0]
        untried = [candidate for candidate in self._candidates if candidate.rounds < candidate.trial_rounds]
        if untried:
            return untried[0]
        fastest = min(self._candidates, key=lambda candidate: candidate.seconds_per_sample)
        for candidate in self._candidates:
            wait = _ROUNDS_BETWEEN_TRIALS * candidate.seconds_per_sample / fastest.seconds_per_sample
            # Towards the end no trial is worth its round: too few remain to gain by a faster engine.
            is_due = self._round - candidate.last_round > wait and self._rounds - self._round > wait
            if candidate is not fastest and is_due:
                return candidate
        return fastest

    def _engine(self, candidate: Candidate) -> Engine:
        if candidate.engine is None:
            candidate.engine = candidate.start()
        return candidate.engine

    def _dismiss(self, candidate: Candidate, reason: str) -> None:
        self._candidates.remove(candidate)
        self._failures.append(f"{candidate.description} cannot run this: {reason}")
        if candidate.engine is not None:
            candidate.engine.close()
