"""The config section `engine`, and the engine that it means here: with `auto`, the fastest in whole rounds of the run.

A short trial would mislead, because start-up and other work on the machine weigh more in it than training. So real
rounds are timed, and from time to time the other engines get another round."""

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import Field, model_validator

from fedloom.core.errors import ClientError, ConfigError
from fedloom.core.key_models import Keys
from fedloom.core.records import Record
from fedloom.engine.client import Worker
from fedloom.engine.device import AUTO, DEVICES
from fedloom.engine.jobs import EvalJob, EvalResult, Job, JobResult
from fedloom.engine.loop import Federation
from fedloom.engine.processes import Processes
from fedloom.engine.processes.engine import may_start_processes
from fedloom.engine.processes.shared_memory import SharedMemory
from fedloom.engine.ray import OnRay
from fedloom.engine.serial import Engine, Jobs, Serial
from fedloom.engine.speedups import Speedups, keep_freed_memory
from fedloom.engine.stacked import Batched, obstacle
from fedloom.engine.threads import Threads
from fedloom.evaluation.own_metrics import metric_of_one_process
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
            self._candidates.remove(self._current)
            self._failures.append(f"{self._current.description} cannot run this: {error}")
            if self._current.engine is not None:
                self._current.engine.close()
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


DEFAULT_STACK = {"cpu": 32, "cuda": 128}  # clients in a stack; out of memory halves it
_MIN_REPLAYED = 0.5  # share of steps that threads must replay to be chosen without a comparison
_BOUND_ROUNDS = 3  # in a row in which threads waited for Python; then they are compared with processes
_DAEMONIC_PROCESS = (
    "this process is daemonic, as those of a multiprocessing.Pool are, and may start no others: its clients run in "
    "this process; a concurrent.futures.ProcessPoolExecutor has processes that may"
)
_NO_SHARED_MEMORY = (
    "no memory can be shared between processes here (ulimit -v or ulimit -f): what clients send goes through pipes, "
    "which is slower"
)
_COMPILING = (
    "the C++ part of engine: threads is compiled in the background, once for this machine; until it is there, clients "
    "train without it"
)
_NO_TIME_LIMIT = {
    "ray": "on Ray a client may wait for a free core, so its seconds are not known; leave it out",
    "threads": "a thread cannot be ended; take engine: processes, or leave it out",
}


class EngineChoice(Keys, extra="forbid", frozen=True, allow_inf_nan=False):
    """The engine that runs the clients, e.g. `engine: serial` or `{name: processes, workers: 8}`."""

    name: Literal["auto", "serial", "threads", "processes", "batched", "ray"] = "auto"
    same_bits: bool = True
    kernels: Literal["auto", "torch", "own"] = "auto"
    workers: int | None = Field(None, ge=1)
    stack: int | None = Field(None, ge=2)
    client_seconds: float | None = Field(None, gt=0)
    state_budget_mb: float | None = Field(None, gt=0)
    device: str = Field(AUTO, pattern=DEVICES, examples=["cuda:0"])
    deterministic: bool = True
    fast: bool = True

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, section: Any) -> Any:
        return {"name": section} if isinstance(section, str) else section

    @model_validator(mode="after")
    def _refuse_client_seconds(self) -> "EngineChoice":
        if self.client_seconds is not None and (reason := _NO_TIME_LIMIT.get(self.name)):
            raise ConfigError(f"engine.client_seconds = {self.client_seconds:g}: {reason}")
        return self

    def state_budget(self) -> int | None:
        return None if self.state_budget_mb is None else int(self.state_budget_mb * 2**20)


def available_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class ChosenEngine:
    """An engine, and a warning about it for the user."""

    engine: Engine
    warning: str | None = None


def choose_engine(
    federation: Federation, worker: Worker, choice: EngineChoice, note: Callable[[str], None] = lambda text: None
) -> ChosenEngine:
    """Return the engine that the config's section `choice` means for a federation before its next round; `note` gets
    texts about slow clients. Raises `ConfigError` if the engine or own kernels cannot run this."""
    keep_freed_memory()
    if choice.kernels == "own":
        worker = _with_kernels(worker, choice)
    cores = available_cores()
    workers = 1 if worker.device.type != "cpu" else min(choice.workers or cores, federation.clients_per_round)
    name, warnings = choice.name, list[str]()
    if name == "threads" and (reason := worker.speedups.threads_obstacle()):
        warnings.append(f"engine: threads cannot be used here ({reason}); clients run in processes")
        name = "processes" if workers > 1 else "serial"
    elif name in ("threads", "auto") and workers > 1 and not worker.speedups.threads_ready():
        note(_COMPILING)
    uses_processes = name not in ("serial", "ray", "threads")
    if uses_processes and workers > 1 and (reason := _process_obstacle(worker)):
        warnings.append(reason)
        name, workers = "serial" if name == "processes" else name, 1
    if name not in ("auto", "serial", "ray") and workers > cores:
        warnings.append(f"engine.workers = {workers}: they share {cores} cores; more workers than cores are no faster")
    if uses_processes and workers > 1 and not _shares_memory():
        warnings.append(_NO_SHARED_MEMORY)
    if name == "batched" and (reason := obstacle(worker)):
        raise ConfigError(f"engine: batched cannot run this: {reason}; take processes, serial or auto")
    start = functools.partial(_start_engine, federation=federation, choice=choice, workers=workers, note=note)
    if name == "auto":
        remaining_rounds = federation.tasks[0].rounds - federation.round
        engine: Engine = Auto(list(_candidates(worker, choice, workers, start)), remaining_rounds)
    else:
        engine = start(name, worker)
    return ChosenEngine(engine, "; ".join(warnings) or None)


def engine_name(engine: Engine, choice: EngineChoice) -> str:
    """Return the engine's name in results."""
    return engine.name + (", own kernels" if choice.kernels == "own" else "")


def _process_obstacle(worker: Worker) -> str | None:
    """Why clients cannot run in other processes; None if they can."""
    if not may_start_processes():
        return _DAEMONIC_PROCESS
    metrics = (evaluator.metrics.items() for evaluator in worker.evaluators.values())
    local = metric_of_one_process(dict(itertools.chain.from_iterable(metrics)))
    return None if local is None else f"{local}: other processes cannot send its state, so clients run in this one"


def _shares_memory() -> bool:
    memory = SharedMemory()
    reserved = memory.reserved
    memory.close()
    return reserved


def _start_engine(
    name: str, worker: Worker, federation: Federation, choice: EngineChoice, workers: int, note: Callable[[str], None]
) -> Engine:
    if name == "serial":
        return Serial(worker, note)
    if name == "ray":
        return OnRay(worker, federation.tasks, workers=choice.workers, note=note)
    if name == "threads":
        testers = functools.partial(Processes, worker, federation.tasks, workers=workers, note=note)
        return Threads(worker, workers, note, testers if workers > 1 and may_start_processes() else None)
    stack = (choice.stack or DEFAULT_STACK[worker.device.type]) if name == "batched" else 1
    if stack > 1 and workers < 2:
        return Batched(worker, stack)
    seconds = choice.client_seconds
    return Processes(worker, federation.tasks, workers=workers, client_seconds=seconds, stack=stack, note=note)


def _candidates(
    worker: Worker, choice: EngineChoice, workers: int, start: Callable[[str, Worker], Engine]
) -> Iterator[Candidate]:
    """The engines that `auto` may choose: first those with the serial engine's bits, the most likely first."""
    in_processes, speedups = f"in {workers} processes", worker.speedups
    if workers > 1 and choice.same_bits and choice.client_seconds is None and speedups.threads_obstacle() is None:
        yield Candidate(
            f"on {workers} threads",
            lambda: start("threads", worker),
            ready=speedups.threads_ready,
            serves=functools.partial(_threads_serve, worker),
        )

    def candidate(name: str, description: str, worker: Worker, *, is_reference: bool = True) -> Candidate:
        trial_rounds = 1 if name == "serial" else 2  # the serial engine has no start-up
        return Candidate(description, lambda: start(name, worker), is_reference, trial_rounds)

    names = {"processes": in_processes, "serial": "in one"} if workers > 1 else {"serial": "in one process"}
    yield from (candidate(name, description, worker) for name, description in names.items())
    if choice.same_bits:
        return
    nets = [loaded_net.net for loaded_net in worker.loaded_nets]
    if choice.kernels == "auto" and Speedups.kernels_obstacle(nets, worker.device) is None:
        with_kernels = worker.copy(replace(worker.speedups, kernels=True))
        for name, description in names.items():
            yield candidate(name, f"{description} with own kernels", with_kernels, is_reference=False)
    if obstacle(worker) is None and not worker.speedups.kernels:
        where = in_processes if workers > 1 else "in one process"
        yield candidate("batched", f"stacked {where}", worker, is_reference=False)


def _threads_serve(worker: Worker, engine: Engine) -> bool:
    """Whether threads replay most steps, and need not wait for Python; or whether that cannot be said yet."""
    replayed_share = worker.stepper.replayed_share()
    if not isinstance(engine, Threads):
        return replayed_share >= _MIN_REPLAYED
    return engine.is_settling or (replayed_share >= _MIN_REPLAYED and engine.python_bound_rounds < _BOUND_ROUNDS)


def _with_kernels(worker: Worker, choice: EngineChoice) -> Worker:
    """A copy of the worker with own kernels. Raises `ConfigError` if the chosen engine cannot use them."""
    reason = Speedups.kernels_obstacle([loaded_net.net for loaded_net in worker.loaded_nets], worker.device)
    if choice.name == "batched":
        reason = "stacks are computed by torch"
    if reason is not None:
        raise ConfigError(f"engine.kernels: own cannot be used: {reason}; leave it out, or take torch")
    return worker.copy(replace(worker.speedups, kernels=True))
