"""Steps that come again and again, recorded once and replayed: the same operators, without what leads to them.

A step of a small net spends most of its time on modules, on autograd's graph and on Python. One that comes often has
its operators, gradients and update included, recorded: as a program (`engine/programs.py`), on a GPU as a CUDA graph
(`engine/captured.py`). A recording is used only if it gives the bits of the step it was made from, buffers included (on
a GPU, where sums have no fixed order, its numbers; there it may have been written in several ways, and the fastest is
taken); what cannot be recorded runs as before.
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
_TRIALS = 20


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

    `hurried`: those that come twice, in a trial of what will run for long. `programs`: recordings; `others`: those of
    them that are another way of writing the step, on a GPU.
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
        self.programs, self.others, self.hurried = 0, 0, False
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
        others: Sequence[Callable[..., Taken]] = (),
    ) -> Taken:
        """`step()`, or its recording: `pure(*inputs)` computes the same from tensors alone, changing them as it does.

        A recording holds for inputs of one layout. key: what else it depends on; steps: how many of them it is; others:
        other ways to write `pure`, that may be faster on a GPU.
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
                self._record(known, [pure, *others], inputs)
        return taken

    def _record(self, known: _Known, ways: Sequence[Callable[..., Taken]], inputs: Sequence[Tensor]) -> None:
        started = time.perf_counter()
        tried = [_recorded(way, ways[0], inputs) for way in (ways if _on_gpu(inputs) else ways[:1])]
        made = [recording for recording in tried if recording is not None]
        if made:
            best = min(made, key=lambda recording: _seconds(recording, inputs)) if len(made) > 1 else made[0]
            known.program, self.programs, self.others = best, self.programs + 1, self.others + best.other
        self.after_seconds = min(self.after_seconds, 2 * (time.perf_counter() - started))


class _Recording:
    """A recorded step, and how its outputs are named. other: whether it is another way of writing the step."""

    def __init__(self, program: Program, like: Taken, *, other: bool) -> None:
        self._program, self.other = program, other
        self._names = [(list(out.terms), list(out.taps)) for out in like.objectives]

    def __call__(self, inputs: Sequence[Tensor]) -> Taken:
        with torch.no_grad():
            given = iter(self._program(*inputs))
        objectives = [
            Objective(next(given), {name: next(given) for name in terms}, {name: next(given) for name in taps})
            for terms, taps in self._names
        ]
        return Taken(objectives, list(given))


def _recorded(way: Callable[..., Taken], pure: Callable[..., Taken], inputs: Sequence[Tensor]) -> _Recording | None:
    """The recording of `way`, or None without `pure`'s bits: twice, for what the first time might spoil."""
    try:
        wanted = _copies(inputs)
        expected = pure(*wanted)
        make = Captured if _on_gpu(inputs) else compiled
        made = make(lambda *tensors: _flat(way(*tensors)), _copies(inputs))
        recording = _Recording(made, expected, other=way is not pure)
        for _ in range(2):
            changed = _copies(inputs)
            got = recording(changed)
            pairs = zip([*_flat(expected), *wanted], [*_flat(got), *changed], strict=True)
            if not all(_same(a, b) for a, b in pairs):
                return None
    except Exception:  # whatever stands in the way of a recording, the step itself still runs and tells its own errors
        return None
    return recording


def _on_gpu(inputs: Sequence[Tensor]) -> bool:
    return any(tensor.is_cuda for tensor in inputs)


def _seconds(recording: _Recording, inputs: Sequence[Tensor]) -> float:
    """What a call takes on a GPU."""
    given = _copies(inputs)
    torch.cuda.synchronize(given[0].device)
    started = time.perf_counter()
    for _ in range(_TRIALS):
        recording(given)
    torch.cuda.synchronize(given[0].device)
    return (time.perf_counter() - started) / _TRIALS


def layouts(inputs: Sequence[Tensor]) -> Hashable:
    """Shapes and memory orders: operators on others may be others."""
    return tuple([(tensor.shape, tensor.stride()) for tensor in inputs])


def _same(a: Tensor, b: Tensor) -> bool:
    if _on_gpu([a]) and a.is_floating_point():
        return torch.allclose(a, b, rtol=_CUDA_TOLERANCE, atol=_CUDA_TOLERANCE)
    return torch.equal(a, b)


def _flat(taken: Taken) -> list[Tensor]:
    named = [[out.total, *out.terms.values(), *out.taps.values()] for out in taken.objectives]
    return [tensor.detach() for tensors in [*named, taken.tensors] for tensor in tensors]


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in inputs]
