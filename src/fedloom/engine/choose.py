"""Which engine runs the clients: the one asked for, or the one that a trial finds fastest."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from fedloom.engine.client import Job, Worker
from fedloom.engine.loop import Federation
from fedloom.engine.processes import Processes
from fedloom.engine.serial import Engine, Serial
from fedloom.methods.method import ServerContext

_TRIAL_SECONDS = 0.1  # of one client in a trial, at most; a single batch if that takes longer


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """What a run asks for. workers: processes, None for one per core; client_seconds: longest time for one client."""

    name: Literal["auto", "serial", "processes"] = "auto"
    workers: int | None = None
    client_seconds: float | None = None


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

    Every engine gives the same bits, so a choice changes seconds alone.
    """
    wanted = min(choice.workers or cores(), federation.sampled)
    if choice.name == "serial" or (choice.name == "auto" and wanted < 2):
        return Equipped()
    processes = Processes(worker, federation.tasks, workers=wanted, client_seconds=choice.client_seconds)
    if choice.name == "processes":
        federation.engine = processes
        crowded = f"engine.workers = {wanted}: they share {cores()} cores; more workers than cores are no faster"
        return Equipped(warning=crowded if wanted > cores() else None)
    serial, parallel = _trial(federation, worker, processes, wanted)
    reason = f"a trial of {2 * wanted} clients took {serial:.3f} s in one process and {parallel:.3f} s in {wanted}"
    if parallel < serial:
        federation.engine = processes
    else:
        processes.close()
    return Equipped(reason)


def _trial(federation: Federation, worker: Worker, processes: Processes, workers: int) -> tuple[float, float]:
    """Seconds that both engines take for the same small round; nothing of it is kept."""
    chosen = list(itertools.islice(itertools.cycle(federation.participants(1)), 2 * workers))
    if not chosen:
        return 0.0, 0.0
    batch = worker.local.batch_size
    once = _seconds(lambda: _drained(Serial(worker), _jobs(federation, chosen[:1], batch)))
    once = min(once, _seconds(lambda: _drained(Serial(worker), _jobs(federation, chosen[:1], batch))))
    samples = batch * max(1, int(_TRIAL_SECONDS / max(once, 1e-6)))
    _drained(processes, _jobs(federation, chosen, batch))  # the first round pays for memory that later ones use again
    return (
        _seconds(lambda: _drained(Serial(worker), _jobs(federation, chosen, samples))),
        _seconds(lambda: _drained(processes, _jobs(federation, chosen, samples))),
    )


def _jobs(federation: Federation, chosen: list[int], samples: int) -> Iterator[Job]:
    """One epoch of the first round on up to `samples` samples of each client."""
    for client in chosen:
        facts = federation.client_context(client, 1)
        ctx = replace(facts, task=replace(facts.task, local_epochs=1), samples=min(samples, facts.samples))
        payload = federation.method.down(federation.server, client, ServerContext(facts.task, 1))
        indices = federation.scenario.train.tensor(client)[:samples]
        yield Job(ctx, payload, federation.method.client_init(facts), indices)


def _drained(engine: Engine, jobs: Iterator[Job]) -> None:
    for _ in engine.run(jobs):
        pass


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
