"""The only access to `engine/fast/`, which does the same work faster, and the handling of freed memory.

Without that folder, all runs work as before.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import platform
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import torch

from fedloom.data.dataset import Dataset
from fedloom.engine.batch_sampler import EpochBatches
from fedloom.engine.client_phases import ClientMemory, Results
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


_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4  # of mallopt(3)
_DEFAULT_MMAP_MAX = 65_536
_MMAP_BYTES, _TRIM_BYTES = 32 << 20, 1 << 30


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory in this process, because each training step allocates what the last one freed.

    By default it returns large blocks to the kernel and gets them back page by page, which costs small nets a quarter
    of their time. Does nothing with another C library.
    """
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


@contextlib.contextmanager
def large_blocks_kept() -> Iterator[None]:
    """Keep freed blocks above 32 MiB too, which glibc else returns to the kernel whatever its threshold is.

    Steps of a net with 50 million weights take a third less time. A run leaves it out, because such blocks stay with
    the process. Does nothing with another C library.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    keep_freed_memory()
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_MAX, 0)
    try:
        yield
    finally:
        library.mallopt(_MMAP_MAX, _DEFAULT_MMAP_MAX)


class HeldHeap:
    """Leaves what exists when a run starts out of garbage collections until the run ends.

    A full collection visits half a million objects of imported packages. That takes 0.1 seconds, as much as several
    rounds of small nets, and finds nothing. Objects of the run itself are collected as always. If somebody else has
    called `gc.freeze`, nothing is done.
    """

    _lock, _holders, _froze = threading.Lock(), 0, False

    def __init__(self) -> None:
        self._holds = False

    def hold(self) -> None:
        """Leave present objects out, if that has not been done."""
        with HeldHeap._lock:
            if self._holds:
                return
            self._holds = True
            HeldHeap._holders += 1
            if HeldHeap._holders == 1 and not gc.get_freeze_count():
                gc.freeze()
                HeldHeap._froze = True

    def release(self) -> None:
        """Let them be collected again, once no other run holds them."""
        with HeldHeap._lock:
            if not self._holds:
                return
            self._holds = False
            HeldHeap._holders -= 1
            if not HeldHeap._holders and HeldHeap._froze:
                gc.unfreeze()
                HeldHeap._froze = False
