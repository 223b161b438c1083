"""Which engine runs the clients: the one asked for, or the one that a trial finds fastest."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from fedloom.core.errors import ClientError, ConfigError
from fedloom.engine.batched import WIDTH, WIDTH_LINEAR, Batched
from fedloom.engine.client import Job, Worker
from fedloom.engine.loop import Federation
from fedloom.engine.members import is_linear
from fedloom.engine.memory import keep_freed
from fedloom.engine.processes import Processes
from fedloom.engine.serial import Engine, Serial
from fedloom.engine.stacks import obstacle
from fedloom.methods.method import ServerContext

_CLIENT_SECONDS = 0.1  # of one client in a trial, at most; a single batch if that takes longer
_TRIAL_SECONDS = 0.5  # of the clients of a trial, one after another, unless two for each worker take longer
_LONG_SECONDS = 10.0  # a run of more has its steps recorded in the trial as they will be later, if it is to be stacked


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What a run asks for. workers: processes, None for one per core; client_seconds: longest time for one client;
    width: clients in a stack, None for what suits the nets; same_bits: whether `auto` keeps to the bits of the serial
    engine with torch's kernels; kernels: torch's; native, the project's own for small convolutions and for stacks of
    linear nets; or auto, torch's unless `auto` chooses the engine, may change bits, and finds the others faster.
    """

    name: Literal["auto", "serial", "processes", "batched"] = "auto"
    workers: int | None = None
    client_seconds: float | None = None
    width: int | None = None
    same_bits: bool = True
    kernels: Literal["auto", "torch", "native"] = "auto"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Equipped:
    """What to tell of a choice: why this engine (where it was tried), and what is wrong with it."""

    reason: str | None = None
    warning: str | None = None


def equip(federation: Federation, worker: Worker, choice: EngineChoice) -> Equipped:
    """Give the federation, made with a serial engine, the engine chosen.

    Raises `ConfigError` for the batched engine if it cannot run this, and for native kernels if they cannot.
    """
    keep_freed()
    if choice.kernels == "native":
        worker = _native(worker, choice)
    wanted = 1 if worker.device.type != "cpu" else min(choice.workers or cores(), federation.sampled)
    if choice.name == "auto":
        return _tried(federation, worker, choice, wanted)
    if choice.name == "batched" and (why := obstacle(worker)):
        raise ConfigError(f"engine: batched cannot run this: {why}; take processes, serial or auto")
    federation.engine = _made(choice.name, federation, worker, choice, wanted)
    crowded = f"engine.workers = {wanted}: they share {cores()} cores; more workers than cores are no faster"
    return Equipped(warning=crowded if choice.name != "serial" and wanted > cores() else None)


def _made(name: str, federation: Federation, worker: Worker, choice: EngineChoice, workers: int) -> Engine:
    if name == "serial":
        return Serial(worker)
    width = _width(worker, choice) if name == "batched" else 1
    if width > 1 and workers < 2:
        return Batched(worker, width)
    seconds = choice.client_seconds
    return Processes(worker, federation.tasks, workers=workers, client_seconds=seconds, width=width)


def _width(worker: Worker, choice: EngineChoice) -> int:
    """Clients in a stack, at most."""
    linear = all(is_linear(live.net) for live in worker.lives)
    return choice.width or (WIDTH_LINEAR if linear else WIDTH)


def _tried(federation: Federation, worker: Worker, choice: EngineChoice, workers: int) -> Equipped:
    """The fastest engine in a small round of which nothing is kept."""
    candidates = list(_candidates(worker, choice, workers))
    stacked = any(candidate.name == "batched" for candidate in candidates)
    trial = _Trial(federation, worker, workers * (_width(worker, choice) if stacked else 2), 2 * workers)
    if len(candidates) == 1 or not trial.clients:
        return Equipped()
    long = not choice.same_bits and trial.seconds_in_all / workers > _LONG_SECONDS
    seconds: dict[_Candidate, float] = {}
    failures = []
    for candidate in candidates:
        engine = _made(candidate.name, federation, candidate.worker, choice, workers)
        try:
            seconds[candidate] = trial.seconds(engine, hurried=long)
        except ClientError as error:
            if candidate.reference:
                raise
            failures.append(f"; {candidate.words(workers)} cannot run this: {error}")
        if seconds and candidate is min(seconds, key=lambda tried: seconds[tried]):
            federation.engine.close()
            federation.engine = engine
        else:
            engine.close()
    told = ", ".join(f"{taken:.3f} s {candidate.words(workers)}" for candidate, taken in seconds.items())
    return Equipped(f"a trial of {len(trial.clients)} clients took {told}" + "".join(failures))


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """An engine to try. reference: whether it has the serial engine's bits, and so must run whatever that runs."""

    name: str
    worker: Worker
    reference: bool = True

    def words(self, workers: int) -> str:
        """How it works, in a sentence."""
        split = "in one process" if workers == 1 or self.name == "serial" else f"in {workers}"
        kernels = " with native kernels" if self.worker.native else ""
        return ("stacked " if self.name == "batched" else "") + split + kernels


def _candidates(worker: Worker, choice: EngineChoice, workers: int) -> Iterator[_Candidate]:
    """All that may be taken, the serial engine first."""
    names = ["serial", *(["processes"] if workers > 1 else [])]
    yield from (_Candidate(name, worker) for name in names)
    if choice.same_bits:
        return
    native = worker.twin(native=True) if choice.kernels == "auto" else worker
    if choice.kernels == "auto" and native_obstacle(worker, "serial") is None:
        yield from (_Candidate(name, native, reference=False) for name in names)
    gains = native_obstacle(worker, "batched") is None
    if obstacle(worker) is None and (gains or not worker.native):
        yield _Candidate("batched", native if gains else worker, reference=False)


def _native(worker: Worker, choice: EngineChoice) -> Worker:
    """The worker with native kernels. Raises `ConfigError` if they can be used in no engine that may be taken."""
    names = ["serial", *([] if choice.same_bits else ["batched"])] if choice.name == "auto" else [choice.name]
    reasons = [native_obstacle(worker, name) for name in names]
    if None not in reasons:
        raise ConfigError(f"engine.kernels: native cannot be used: {reasons[0]}; leave it out, or take torch")
    return worker.twin(native=True)


def native_obstacle(worker: Worker, engine: str) -> str | None:
    """Why native kernels cannot be used in an engine, or would change nothing; None if they can and do."""
    from fedloom.core.native import compiler
    from fedloom.nets.kernels import suited

    nets = [live.net for live in worker.lives]
    if worker.device.type != "cpu":
        return f"they run on the CPU, and the device is {worker.device}"
    if nets[0].in_bfloat16:
        return "they compute in float32, and precision is bfloat16"
    if engine == "batched" and not any(map(is_linear, nets)):
        return "stacks are computed by torch, but for nets with nothing but linear layers"
    if engine != "batched" and not any(map(suited, nets)):
        return "no net has a convolution of so few channels that they are faster"
    if compiler() is None:
        return "there is no C++ compiler (c++, g++, clang++ or $CXX), and they are compiled when first used"
    return None


class _Trial:
    """One epoch of the first round on some samples of some clients: `least` to `most`, as time allows."""

    def __init__(self, federation: Federation, worker: Worker, most: int, least: int) -> None:
        self._federation, batch = federation, worker.local.batch_size
        self.clients = federation.participants(1)[:1]
        self.seconds_in_all = 0.0  # of the run's training, one client after another
        if not self.clients:
            return
        serial = Serial(worker)
        self._samples = batch
        once = min(self._round(serial) for _ in range(2))
        self._samples = batch * max(1, int(_CLIENT_SECONDS / once))
        once = self._round(serial)
        task, samples = federation.tasks[0], len(federation.scenario.train.tensor(self.clients[0]))
        each = once * samples / min(samples, self._samples) * task.local_epochs
        self.seconds_in_all = each * federation.sampled * task.rounds
        count = min(most, max(least, int(_TRIAL_SECONDS / once)))
        self.clients = list(itertools.islice(itertools.cycle(federation.participants(1)), count))

    def seconds(self, engine: Engine, *, hurried: bool) -> float:
        """The shorter of two rounds, after what pays for memory, first calls and, `hurried`, recordings."""
        engine.hurry(hurried)
        for _ in range(3 if hurried else 1):
            self._round(engine)
        engine.hurry(False)
        return min(self._round(engine) for _ in range(2))

    def _round(self, engine: Engine) -> float:
        return _seconds(lambda: _drained(engine, self._jobs()))

    def _jobs(self) -> list[Job]:
        federation, samples = self._federation, self._samples

        def made(client: int) -> Job:
            facts = federation.client_context(client, 1)
            ctx = replace(facts, task=replace(facts.task, local_epochs=1), samples=min(samples, facts.samples))
            payload = federation.method.down(federation.server, client, ServerContext(facts.task, 1))
            indices = federation.scenario.train.tensor(client)[:samples]
            return Job(ctx, payload, federation.method.client_init(facts), indices)

        return [made(client) for client in self.clients]


def _drained(engine: Engine, jobs: list[Job]) -> None:
    for _ in engine.run(jobs):
        pass


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
