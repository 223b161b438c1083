"""Which engine runs the clients: the one asked for, or the one that a run finds fastest."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedloom.core.errors import ConfigError
from fedloom.engine.auto import Auto, Candidate
from fedloom.engine.client import Worker
from fedloom.engine.loop import Federation
from fedloom.engine.memory import keep_freed
from fedloom.engine.processes import Processes
from fedloom.engine.processes.shared_memory import SharedMemory
from fedloom.engine.processes.workers import may_start_processes
from fedloom.engine.ray import OnRay
from fedloom.engine.serial import Engine, Serial
from fedloom.engine.speedups import Speedups
from fedloom.engine.stacked import Batched, obstacle

STACK = 32  # clients in a stack, unless told otherwise
_DAEMONIC = (
    "this process is daemonic, as those of a multiprocessing.Pool are, and may start no others: its clients run in "
    "this process; a concurrent.futures.ProcessPoolExecutor has processes that may"
)
_ON_CPU = {
    "processes": "processes do not help clients that share a device",
    "ray": "workers of Ray train on the CPU",
}


class EngineChoice(BaseModel):
    """The engine that runs the clients, e.g. `engine: serial` or `{name: processes, workers: 8}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Literal["auto", "serial", "processes", "batched", "ray"] = Field(
        "auto",
        description="Engine of the clients' work. `serial`, `processes` and `ray` (tasks on all nodes of a cluster) "
        "give the same bits; `batched` trains stacks of clients in each process, and agrees to about 1e-5. `auto` "
        "compares whole rounds and takes the fastest of those that it may use on this machine.",
    )
    same_bits: bool = Field(
        True,
        description="Whether auto may only choose engines and kernels with the numbers of `serial`, so that "
        "results do not depend on the machine's speed.",
    )
    kernels: Literal["auto", "torch", "own"] = Field(
        "auto",
        description="Code of the convolutions. `own` is the project's own for convolutions of few channels: it needs "
        "a C++ compiler, trains a LeNet up to twice as fast, and agrees to about 1e-5 after a few steps. `auto` is "
        "torch, unless the engine is chosen by auto without `same_bits`.",
    )
    workers: int | None = Field(
        None,
        ge=1,
        description="Number of processes, or of clients at a time on Ray; null takes one per core (on Ray, all cores).",
    )
    stack: int | None = Field(
        None,
        ge=2,
        description="Largest number of clients in a stack of the engine `batched`; null takes 32.",
    )
    client_seconds: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Longest time for the work of one client, in seconds, with more than one process (not on Ray); "
        "null sets no limit.",
    )
    state_budget_mb: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Size of client states that stay in memory, in MiB; the others go to disk. Null sets no limit.",
    )
    device: str = Field(
        "cpu",
        pattern=r"^(cpu|cuda(:\d+)?)$",
        description="Device that clients are trained and tested on: cpu, cuda or cuda:1. On cuda there are no "
        "processes and no Ray, and auto is serial unless `same_bits` is false; ask for batched there.",
        examples=["cuda:0"],
    )
    fast: bool = Field(
        True,
        description="Whether training steps may be sped up. With false every step runs in plain "
        "Python, with the same numbers, for losses that print or are stepped through.",
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _seconds_are_ours(self) -> EngineChoice:
        if self.name == "ray" and self.client_seconds is not None:
            raise ConfigError(
                f"engine.client_seconds = {self.client_seconds:g}: on Ray a client may wait for a free core, so its "
                "seconds are not known; leave it out"
            )
        return self

    def torch_device(self) -> torch.device:
        """The device. Raises `ConfigError` if it is not there, or if the engine cannot use it."""
        device = torch.device(self.device)
        if device.type == "cuda":
            found = torch.cuda.device_count()
            if (device.index or 0) >= found:
                raise ConfigError(
                    f"engine.device = '{self.device}': torch {torch.__version__} finds {found} CUDA devices here; use "
                    "cpu" + (f", or cuda:0 to cuda:{found - 1}" if found else "")
                )
            if self.name in _ON_CPU:
                raise ConfigError(
                    f"engine = {self.name} on '{self.device}': {_ON_CPU[self.name]}; use serial, batched or auto"
                )
        return device

    def state_budget(self) -> int | None:
        """In bytes."""
        return None if self.state_budget_mb is None else int(self.state_budget_mb * 2**20)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Chosen:
    """An engine, and what is wrong with it."""

    engine: Engine
    warning: str | None = None


def choose(
    federation: Federation, worker: Worker, choice: EngineChoice, note: Callable[[str], None] = lambda text: None
) -> Chosen:
    """The engine for a federation. note: is told, while rounds run, which clients take long.

    Where this process may not start others, clients run one after another, and the warning says why. Raises
    `ConfigError` for the batched engine if it cannot run this, for own kernels if they cannot, and for Ray where there
    is no cluster.
    """
    keep_freed()
    if choice.kernels == "own":
        worker = _with_kernels(worker, choice)
    wanted = 1 if worker.device.type != "cpu" else min(choice.workers or cores(), federation.sampled)
    start = functools.partial(_made, federation=federation, choice=choice, workers=wanted, note=note)
    here = choice.name not in ("serial", "ray")  # on several processes of this machine
    alone = None
    if here and wanted > 1 and not may_start_processes():
        alone, wanted = _DAEMONIC, 1
        if choice.name == "processes":
            choice = choice.model_copy(update={"name": "serial", "client_seconds": None})
        start = functools.partial(start, choice=choice, workers=wanted)
    pipes = _pipes() if here and wanted > 1 else None
    if choice.name == "auto":
        left = federation.tasks[0].rounds - federation.round
        return Chosen(Auto(list(_candidates(worker, choice, wanted, start)), left), alone or pipes)
    if choice.name == "batched" and (why := obstacle(worker)):
        raise ConfigError(f"engine: batched cannot run this: {why}; take processes, serial or auto")
    crowded = f"engine.workers = {wanted}: they share {cores()} cores; more workers than cores are no faster"
    warnings = [crowded if here and wanted > cores() else None, alone, pipes]
    return Chosen(start(choice.name, worker), "; ".join(filter(None, warnings)) or None)


def engine_name(engine: Engine, choice: EngineChoice) -> str:
    """What an engine is called in results."""
    return engine.name + (", own kernels" if choice.kernels == "own" else "")


def _pipes() -> str | None:
    """What to say where processes cannot share memory."""
    memory = SharedMemory()
    reserved = memory.reserved
    memory.close()
    if reserved:
        return None
    return (
        "no memory can be shared between processes here (ulimit -v or ulimit -f): what clients send goes through "
        "pipes, which is slower"
    )


def _made(
    name: str,
    worker: Worker,
    *,
    federation: Federation,
    choice: EngineChoice,
    workers: int,
    note: Callable[[str], None],
) -> Engine:
    if name == "serial":
        return Serial(worker, note)
    if name == "ray":
        return OnRay(worker, federation.tasks, workers=choice.workers, note=note)
    stack = (choice.stack or STACK) if name == "batched" else 1
    if stack > 1 and workers < 2:
        return Batched(worker, stack)
    seconds = choice.client_seconds
    return Processes(worker, federation.tasks, workers=workers, client_seconds=seconds, stack=stack, note=note)


def _candidates(
    worker: Worker, choice: EngineChoice, workers: int, start: Callable[[str, Worker], Engine]
) -> Iterator[Candidate]:
    """All that may be taken, the likeliest first; those with the serial engine's bits before the others."""
    split = f"in {workers} processes"

    def made(name: str, words: str, with_: Worker, *, reference: bool = True) -> Candidate:
        timed = 1 if name == "serial" else 2  # nothing has to start
        return Candidate(words, lambda: start(name, with_), reference, timed)

    names = {"processes": split, "serial": "in one"} if workers > 1 else {"serial": "in one process"}
    yield from (made(name, words, worker) for name, words in names.items())
    if choice.same_bits:
        return
    nets = [live.net for live in worker.loaded_nets]
    if choice.kernels == "auto" and Speedups.kernels_obstacle(nets, worker.device) is None:
        own = worker.twin(replace(worker.speedups, kernels=True))
        yield from (made(name, f"{words} with own kernels", own, reference=False) for name, words in names.items())
    if obstacle(worker) is None and not worker.speedups.kernels:
        yield made("batched", f"stacked {split if workers > 1 else 'in one process'}", worker, reference=False)


def _with_kernels(worker: Worker, choice: EngineChoice) -> Worker:
    """The worker with own kernels. Raises `ConfigError` if they cannot be used in the engine that is asked for."""
    why = Speedups.kernels_obstacle([live.net for live in worker.loaded_nets], worker.device)
    if choice.name == "batched":
        why = "stacks are computed by torch"
    if why is not None:
        raise ConfigError(f"engine.kernels: own cannot be used: {why}; leave it out, or take torch")
    return worker.twin(replace(worker.speedups, kernels=True))
