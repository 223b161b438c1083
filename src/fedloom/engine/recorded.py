"""Steps that come again and again, recorded once and replayed: the same operators, without what leads to them.

A step of a small net spends most of its time on modules, on autograd's graph and on Python. One that comes often has
its operators, gradients included, recorded (`make_fx`) and run by TorchScript's interpreter, without its optimisations,
which would change bits. A recording is used only if it gives the bits of the step it was made from, buffers included;
what cannot be recorded runs as before.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.jit import optimized_execution  # type: ignore[attr-defined]

from fedloom.methods.phases import Objective

# A first recording takes over a second, the next ones a tenth: a step must have cost more than that, or it may never
# pay. Long steps gain next to nothing.
AFTER, AFTER_SECONDS, MOST = 20, 2.0, 64
LONGEST_SECONDS, LONGEST_STACKED_SECONDS = 0.002, 0.01
REMEMBERED = 4096  # steps that are counted


class Taken(NamedTuple):
    """A step before its update: the objective, and the gradients of the parameters that move."""

    objective: Objective
    gradients: Sequence[Tensor]


@dataclass(slots=True)
class _Known:
    """A step seen before. `holds` keeps objects alive whose ids are in its key."""

    holds: object
    count: int = 0
    seconds: float = 0.0
    shortest: float = math.inf
    tried: bool = False
    program: _Program | None = None


class Recorder:
    """Takes steps, and records those that come often: `after` times, and for `after_seconds` in all."""

    def __init__(
        self, after_seconds: float = AFTER_SECONDS, longest_seconds: float = LONGEST_SECONDS, after: int = AFTER
    ) -> None:
        self.after_seconds, self.longest_seconds, self.after = after_seconds, longest_seconds, after
        self.programs = 0
        self._known: dict[Hashable, _Known] = {}

    def take(
        self,
        key: Hashable,
        holds: object,
        step: Callable[[], Taken],
        pure: Callable[..., Taken],
        inputs: Sequence[Tensor],
    ) -> Taken:
        """`step()`, or its recording: `pure(*inputs)` computes the same from tensors alone.

        A recording holds for inputs of one layout: operators on others may be others. key: what else it depends on.
        """
        key = (key, tuple([(tensor.shape, tensor.stride()) for tensor in inputs]))
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
        known.count, known.seconds = known.count + 1, known.seconds + spent
        known.shortest = min(known.shortest, spent)
        if (
            known.count >= self.after
            and known.seconds > self.after_seconds
            and not known.tried
            and self.programs < MOST
        ):
            known.tried = True
            if known.shortest < self.longest_seconds:
                known.program = _recorded(pure, inputs)
                self.programs += known.program is not None
        return taken


class _Program:
    """A recorded step, and how its outputs are named."""

    def __init__(self, run: Callable[..., Sequence[Tensor]], like: Taken) -> None:
        self._run, self._terms, self._taps = run, list(like.objective.terms), list(like.objective.taps)

    def __call__(self, inputs: Sequence[Tensor]) -> Taken:
        with torch.no_grad(), optimized_execution(False):
            total, *others = self._run(*inputs)
        last = len(self._terms) + len(self._taps)
        terms = dict(zip(self._terms, others, strict=False))
        taps = dict(zip(self._taps, others[len(self._terms) : last], strict=True))
        return Taken(Objective(total, terms, taps), others[last:])


def _recorded(pure: Callable[..., Taken], inputs: Sequence[Tensor]) -> _Program | None:
    """The program of `pure`, or None if there is none with its bits."""
    try:
        first, second = _copies(inputs), _copies(inputs)
        expected = pure(*first)
        program = _Program(_compiled(lambda *tensors: _flat(pure(*tensors)), inputs), expected)
        got = program(second)
    except Exception:  # whatever stands in the way of a recording, the step itself still runs and tells its own errors
        return None
    same = zip([*_flat(expected), *first], [*_flat(got), *second], strict=True)
    return program if all(torch.equal(a, b) for a, b in same) else None


def _compiled(function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]) -> Callable[..., Sequence[Tensor]]:
    """`function`'s operators, as TorchScript if they can be."""
    from torch.fx.experimental.proxy_tensor import make_fx  # takes a second: most runs never come here

    graph = make_fx(function)(*_copies(inputs))
    for node in list(graph.graph.nodes):
        if node.target is torch.ops.aten.detach.default:  # nothing of this is differentiated again
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.recompile()

    def replayed(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(graph.forward(*tensors))

    with warnings.catch_warnings(), torch.no_grad(), optimized_execution(False):
        warnings.simplefilter("ignore")  # TorchScript is no longer developed, and says so
        try:
            script: Callable[..., Sequence[Tensor]] = torch.jit.trace(
                replayed, tuple(_copies(inputs)), check_trace=False
            )  # type: ignore[no-untyped-call]
        except RuntimeError:  # it knows no lists of truth values, as gradients of convolutions have
            return replayed
    return script


def _flat(taken: Taken) -> list[Tensor]:
    objective = taken.objective
    every = [objective.total, *objective.terms.values(), *objective.taps.values(), *taken.gradients]
    return [tensor.detach() for tensor in every]


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in inputs]
