"""The one door to `engine/fast/`: the same work sooner. Without that folder, everything runs the plain way."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch

from fedloom.engine.steps import Block, Steps, one_by_one
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Objective
from fedloom.nets.net import Net


class Stepping(Protocol):
    """Takes the steps of blocks, with the bits of steps taken one by one."""

    def __call__(self, steps: Steps, block: Block) -> list[Objective]: ...

    def notes(self) -> Sequence[Diagnostic]:
        """What there is to say, once: why steps could not be taken sooner."""
        ...


class _Plain:
    """One step after another."""

    def __call__(self, steps: Steps, block: Block) -> list[Objective]:
        return one_by_one(steps, block)

    def notes(self) -> Sequence[Diagnostic]:
        return ()


@dataclass(frozen=True, slots=True)
class Speedups:
    """Which of them a run takes. steps: those with the same bits. kernels: the project's own convolutions, whose
    numbers agree to about 1e-5 a few steps on."""

    steps: bool = True
    kernels: bool = False

    def stepping(self) -> Stepping:
        """How a worker takes its steps."""
        fast = _folder() if self.steps else None
        return fast.Recorder() if fast else _Plain()

    def prepare(self, net: Net) -> None:
        """Give a net other kernels, if that is asked for."""
        fast = _folder() if self.kernels else None
        net.training_context = fast.OwnKernels if fast else None
        if fast:
            net.channels_last = False  # they know planes

    @staticmethod
    def kernels_obstacle(nets: Sequence[Net], device: torch.device) -> str | None:
        """Why own kernels cannot be used, or would change nothing; None if they can and do."""
        if device.type != "cpu":
            return f"they run on the CPU, and the device is {device}"
        if nets[0].in_bfloat16:
            return "they compute in float32, and precision is bfloat16"
        fast = _folder()
        obstacle: str | None = fast.kernels_obstacle(nets) if fast else "this installation has none"
        return obstacle


def _folder() -> ModuleType | None:
    """`engine/fast/`, if it is there."""
    name = "fedloom.engine.fast"
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
