"""Steps that come again and again, recorded once and replayed: the same operators, without what leads to them.

A step of a small net spends most of its time on modules, on autograd's graph and on Python. One that comes often has
its operators, gradients and update included, recorded: as a program (`engine/programs.py`), on a GPU as a CUDA graph
(`engine/captured.py`). A recording is used only if it gives the bits of the step it was made from, buffers included (on
a GPU, where sums have no fixed order, its numbers); what cannot be recorded runs as before.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedloom.engine.captured import Captured
from fedloom.engine.programs import Program, compiled
from fedloom.methods.phases import Objective

# A first recording takes over a second, of later ones it is known what they take. A step is recorded once it has come
# so often that a recording would have saved that time already; long steps gain next to nothing.
AFTER, AFTER_SECONDS, MOST = 20, 2.0, 64
SAVED_SECONDS, SAVED_STACKED_SECONDS = 0.00025, 0.001
LONGEST_SECONDS = 0.01
REMEMBERED = 4096  # steps that are counted
_CUDA_TOLERANCE = 1e-4


class Taken(NamedTuple):
    """Steps: their objectives, without a graph where they are recorded, and the tensors they leave."""

    objectives: list[Objective]
    tensors: Sequence[Tensor]


@dataclass(slots=True)
class _Known:
    """A step seen before. `holds` keeps objects alive whose ids are in its key."""

    holds: object
    count: int = 0
    steps: int = 0
    shortest: float = math.inf
    tried: bool = False
    program: _Recording | None = None


class Recorder:
    """Takes steps, and records those that come often: `after` times, and until `saved_seconds` of each are together
    more than `after_seconds`.

    `hurried`: those that come twice, in a trial of what will run for long.
    """

    def __init__(
        self,
        after_seconds: float = AFTER_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
        after: int = AFTER,
        saved_seconds: float = SAVED_SECONDS,
    ) -> None:
        self.after_seconds, self.longest_seconds = after_seconds, longest_seconds
        self.after, self.saved_seconds = after, saved_seconds
        self.programs, self.hurried = 0, False
        self._known: dict[Hashable, _Known] = {}

    def take(
        self,
        key: Hashable,
        holds: object,
        step: Callable[[], Taken],
        pure: Callable[..., Taken],
        inputs: Sequence[Tensor],
        *,
        steps: int = 1,
    ) -> Taken:
        """`step()`, or its recording: `pure(*inputs)` computes the same from tensors alone, changing them as it does.

        A recording holds for inputs of one layout. key: what else it depends on; steps: how many of them it is.
        """
        key = (key, layouts(inputs))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= REMEMBERED:  # weights that change every round make a new key each
                self._known = {old: seen for old, seen in self._known.items() if seen.program is not None}
            known = self._known[key] = _Known(holds)
        if known.program is not None:
            return known.program(inputs)
        started = time.perf_counter()
        taken = step()
        spent = time.perf_counter() - started
        known.count, known.steps = known.count + 1, known.steps + steps
        known.shortest = min(known.shortest, spent / steps)
        often = known.count >= self.after and known.steps * self.saved_seconds > self.after_seconds
        if (often or (self.hurried and known.count > 1)) and not known.tried and self.programs < MOST:
            known.tried = True
            if known.shortest < self.longest_seconds:
                self._record(known, pure, inputs)
        return taken

    def _record(self, known: _Known, pure: Callable[..., Taken], inputs: Sequence[Tensor]) -> None:
        started = time.perf_counter()
        known.program = _recorded(pure, inputs)
        self.programs += known.program is not None
        self.after_seconds = min(self.after_seconds, 2 * (time.perf_counter() - started))


class _Recording:
    """A recorded step, and how its outputs are named."""

    def __init__(self, program: Program, like: Taken) -> None:
        self._program = program
        self._names = [(list(out.terms), list(out.taps)) for out in like.objectives]

    def __call__(self, inputs: Sequence[Tensor]) -> Taken:
        with torch.no_grad():
            given = iter(self._program(*inputs))
        objectives = [
            Objective(next(given), {name: next(given) for name in terms}, {name: next(given) for name in taps})
            for terms, taps in self._names
        ]
        return Taken(objectives, list(given))


def _recorded(pure: Callable[..., Taken], inputs: Sequence[Tensor]) -> _Recording | None:
    """The recording of `pure`, or None if there is none with its bits: twice, for what the first time might spoil."""
    try:
        wanted = _copies(inputs)
        expected = pure(*wanted)
        make = Captured if any(tensor.is_cuda for tensor in inputs) else compiled
        recording = _Recording(make(lambda *tensors: _flat(pure(*tensors)), _copies(inputs)), expected)
        for _ in range(2):
            changed = _copies(inputs)
            got = recording(changed)
            pairs = zip([*_flat(expected), *wanted], [*_flat(got), *changed], strict=True)
            if not all(_same(a, b) for a, b in pairs):
                return None
    except Exception:  # whatever stands in the way of a recording, the step itself still runs and tells its own errors
        return None
    return recording


def layouts(inputs: Sequence[Tensor]) -> Hashable:
    """Shapes and memory orders: operators on others may be others."""
    return tuple([(tensor.shape, tensor.stride()) for tensor in inputs])


def _same(a: Tensor, b: Tensor) -> bool:
    if a.is_cuda and a.is_floating_point():
        return torch.allclose(a, b, rtol=_CUDA_TOLERANCE, atol=_CUDA_TOLERANCE)
    return torch.equal(a, b)


def _flat(taken: Taken) -> list[Tensor]:
    named = [[out.total, *out.terms.values(), *out.taps.values()] for out in taken.objectives]
    return [tensor.detach() for tensors in [*named, taken.tensors] for tensor in tensors]


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in inputs]
