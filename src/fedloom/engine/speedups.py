"""The only access to `engine/fast/`, which does the same work faster. Without that folder, all runs work as before."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch

from fedloom.data.dataset import Dataset
from fedloom.engine.batch_sampler import EpochBatches
from fedloom.engine.client_memory import ClientMemory
from fedloom.engine.epoch_results import Results
from fedloom.engine.statistics_pass import Steps
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.nets.net import Net


class Replay(Protocol):
    """Steps of one client that need no Python. Whoever gets one runs it before the client continues."""

    @property
    def job(self) -> Any:
        """The work in the form that the threads of `ReplayPool` take."""
        ...

    def run(self) -> None:
        """Take the steps in this thread."""
        ...


class Stepper(Protocol):
    """Takes the steps of epochs or of a statistics pass, with the same bits as steps that are taken one by one.

    setup_seconds: CPU time so far that served to make later steps faster.
    """

    setup_seconds: float

    def __call__(
        self, steps: Steps, memory: ClientMemory, epochs: Sequence[EpochBatches], results: Results
    ) -> Iterator[Replay]:
        """Take a step for each batch that is left in the epochs. Yield work that others may run."""
        ...

    def notes(self) -> Sequence[Diagnostic]:
        """Return, each once, the reasons why steps could not be sped up."""
        ...

    def replayed_share(self) -> float:
        """Return the share of the steps since the last call that needed no Python."""
        ...


class ReplayPool(Protocol):
    """Threads that run replays. Whoever waits for a result runs one meanwhile."""

    def submit(self, number: int, replay: Any) -> None:
        """Queue a replay (`Replay.job`) under a number, by which `next` names it."""
        ...

    def next(self) -> int:
        """Return the number of a finished replay, or -1 if there is none to wait for."""
        ...

    def waiting(self) -> int:
        """Return the number of replays that no thread has begun."""
        ...

    def drain(self) -> None:
        """Forget the replays that wait, and wait for those that run."""
        ...

    def close(self) -> None:
        """End the threads."""
        ...


class _PlainStepper:
    """Takes one step after another."""

    setup_seconds = 0.0

    def __call__(
        self, steps: Steps, memory: ClientMemory, epochs: Sequence[EpochBatches], results: Results
    ) -> Iterator[Replay]:
        with memory.in_net(reads=steps.reads):
            steps.set_modes()
            for epoch in epochs:
                while len(epoch):
                    batch = epoch.take()
                    results.add(epoch, steps.run(batch).objectives, [batch])
        return iter(())

    def notes(self) -> Sequence[Diagnostic]:
        return ()

    def replayed_share(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class Speedups:
    """The speed-ups of a run.

    Attributes:
        steps: replay the operators of steps; the bits stay the same.
        kernels: use the project's own convolutions; numbers agree to about 1e-5 after a few steps.
    """

    steps: bool = True
    kernels: bool = False

    def stepper(self, data: Dataset) -> Stepper:
        """Return a stepper for batches of `data`, fast or plain."""
        fast = _fast_folder() if self.steps and data.y.device.type == "cpu" else None
        return fast.Replayer(data) if fast else _PlainStepper()

    @staticmethod
    def plain_stepper() -> Stepper:
        """Return a stepper for batches of any data, one step after another."""
        return _PlainStepper()

    def threads_obstacle(self) -> str | None:
        """Begin to prepare threads that replay steps; return why they cannot be used, or None if they can or will."""
        if not self.steps:
            return "engine.fast is false"
        fast = _fast_folder()
        obstacle: str | None = fast.threads_obstacle() if fast else "this installation has no engine/fast"
        return obstacle

    def threads_compiling(self) -> bool:
        """Return whether threads that replay steps can be used later."""
        return self.threads_obstacle() is None and not self.threads_ready()

    def threads_ready(self) -> bool:
        """Return whether threads that replay steps can be used now."""
        fast = _fast_folder() if self.steps else None
        return bool(fast and fast.threads_ready())

    def pool(self, threads: int) -> ReplayPool:
        """Return a pool of `threads` threads, among them the one that waits for results."""
        fast = _fast_folder()
        assert fast is not None
        pool: ReplayPool = fast.pool(threads)
        return pool

    def prepare(self, net: Net) -> None:
        """Set the net's kernels."""
        fast = _fast_folder() if self.kernels or self.steps else None
        net.kernel_context = fast.OwnKernels if fast and self.kernels else None
        net.test_context = fast.InferenceKernels if fast and fast.InferenceKernels.speeds_up(net) else None
        if fast and self.kernels:
            net.channels_last = False  # own kernels expect planes

    @staticmethod
    def kernels_obstacle(nets: Sequence[Net], device: torch.device) -> str | None:
        """Return why own kernels cannot be used or would change nothing; None if they can be used."""
        if device.type != "cpu":
            return f"they run on the CPU, and the device is {device}"
        if nets[0].in_bfloat16:
            return "they compute in float32, and precision is bfloat16"
        fast = _fast_folder()
        obstacle: str | None = fast.kernels_obstacle(nets) if fast else "this installation has none"
        return obstacle


def _fast_folder() -> ModuleType | None:
    """`engine/fast/`, or None if it was deleted."""
    name = "fedloom.engine.fast"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
