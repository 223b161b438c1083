"""The only access to `engine/fast/`, which does the same work faster. Without that folder, all runs work as before."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Protocol

import torch

from fedloom.engine.steps import Block, EpochSteps, plain_steps
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Objective
from fedloom.nets.net import Net


class Stepper(Protocol):
    """Takes the steps of blocks, with the same bits as steps that are taken one by one."""

    def __call__(self, steps: EpochSteps, block: Block) -> list[Objective]: ...

    def notes(self) -> Sequence[Diagnostic]:
        """Return, each once, the reasons why steps could not be sped up."""
        ...


class _PlainStepper:
    """Takes one step after another."""

    def __call__(self, steps: EpochSteps, block: Block) -> list[Objective]:
        return plain_steps(steps, block)

    def notes(self) -> Sequence[Diagnostic]:
        return ()


@dataclass(frozen=True, slots=True)
class Speedups:
    """The speed-ups of a run.

    Attributes:
        steps: replay the operators of steps; the bits stay the same.
        kernels: use the project's own convolutions; numbers agree to about 1e-5 after a few steps.
    """

    steps: bool = True
    kernels: bool = False

    def stepper(self) -> Stepper:
        """Return a stepper, fast or plain."""
        fast = _fast_folder() if self.steps else None
        return fast.Recorder() if fast else _PlainStepper()

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
