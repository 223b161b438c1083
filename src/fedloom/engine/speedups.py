"""The only access to `engine/fast/`, which does the same work faster, and the handling of freed memory.

Without that folder, all runs work as before."""

import ctypes
import functools
import gc
import importlib
import importlib.util
import platform
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from fedloom.data.dataset import Dataset
from fedloom.engine.client_phases import Stepper
from fedloom.nets.net import Net


@dataclass(frozen=True, slots=True)
class Speedups:
    """The speed-ups of a run: `steps` replays the operators of steps, with the same bits; `kernels` uses the project's
    convolutions, whose numbers agree to about 1e-5 after a few steps."""

    steps: bool = True
    kernels: bool = False

    def stepper(self, data: Dataset) -> Stepper:
        steppers = {"cpu": "Replayer", "cuda": "GraphStepper"}
        name, fast = steppers.get(data.y.device.type), self._fast()
        stepper: Stepper = getattr(fast, name)(data) if fast and name else Stepper()
        return stepper

    def stacks(self, data: Dataset, width: int) -> Any:
        """Return what takes steps of stacks of up to `width` clients faster (`FastStacks`); None if nothing does."""
        fast = self._fast() if data.y.device.type == "cuda" else None
        return fast and fast.StackGraphs(data, width)

    def _fast(self) -> ModuleType | None:
        return _fast_folder() if self.steps else None

    def threads_obstacle(self) -> str | None:
        """Begin to prepare threads that replay steps; return why they cannot be used, or None if they can or will."""
        if not self.steps:
            return "engine.fast is false"
        if (fast := _fast_folder()) is None:
            return "this installation has no engine/fast"
        fast.replay_library().start()
        obstacle: str | None = fast.replay_library().obstacle
        return obstacle

    def threads_ready(self) -> bool:
        """Return whether threads that replay steps can be used now."""
        fast = self._fast()
        return bool(fast and fast.replay_library().ready())

    def pool(self, threads: int) -> Any:
        """Return a pool of `threads` threads that run replays, among them the one that waits for results: in C++, with
        `submit(number, replay.job)`; `next()` returns the number of a finished replay and runs another one meanwhile,
        or returns -1; `waiting()` counts those not begun; `drain()` forgets these and awaits the others; `close()`."""
        return torch.classes.fedloom_replay.Pool(threads - 1)

    def prepare(self, net: Net) -> None:
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
    name = "fedloom.engine.fast"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_MMAP_BYTES, _TRIM_BYTES = 32 << 20, 1 << 30  # mallopt takes no more than 32 MiB for the first


@functools.cache
def keep_freed_memory() -> None:
    """Make glibc keep freed memory in this process: by default it returns large blocks to the kernel and gets them back
    page by page, which costs small nets a quarter of their time. Does nothing with another C library."""
    if platform.libc_ver()[0] == "glibc":
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


class HeldHeap:
    """Leaves what exists when a run starts out of garbage collections until it ends, unless other code has called
    `gc.freeze`. A full collection visits half a million objects of imported packages in 0.1 s, and finds nothing."""

    _lock, _holders, _froze = threading.Lock(), set[int](), False  # of all runs of this process

    def hold(self) -> None:
        with HeldHeap._lock:
            if not HeldHeap._holders and not gc.get_freeze_count():
                gc.freeze()
                HeldHeap._froze = True
            HeldHeap._holders.add(id(self))

    def release(self) -> None:
        with HeldHeap._lock:
            HeldHeap._holders.discard(id(self))
            if HeldHeap._froze and not HeldHeap._holders:
                gc.unfreeze()
                HeldHeap._froze = False
