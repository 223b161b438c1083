"""Steps that come again and again, recorded once and replayed: the same operators, without what leads to them.

A step of a small net spends most of its time on modules, on autograd's graph and on Python. Here its operators,
gradients and update included, become a program (`programs.py`). A program holds for inputs of one size, and clients
have many sizes. So a block of batches is cut into pieces of a few lengths: any client is a sequence of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.streams import Streams, generator_states
from fedloom.engine.fast.programs import Program, RandomNumbersError, UnrecordableError, compiled
from fedloom.engine.keys import phase_key
from fedloom.engine.leaves import leaves_of, rebuilt, shape_of
from fedloom.engine.steps import Block, Steps, Taken, all_steps, loss_and_gradients
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Batch, Consts, Objective
from fedloom.nets.functional_call import FunctionalCall

# Full batches in a piece. A shorter last batch is a piece of its own.
LENGTHS = (8, 4, 2, 1)
# The first recording takes over a second, of later ones it is known what they take. A piece is recorded when it will
# save twice that in the rest of the run, if it comes as often as so far; long steps gain next to nothing.
LEAST_COUNT, FIRST_SECONDS, MOST_PROGRAMS = 3, 2.0, 64
SAVED_SECONDS = 0.00025  # of each step, about
LONGEST_SECONDS = 0.01
MOST_COUNTED = 4096  # kinds of pieces


@dataclass(slots=True)
class _Seen:
    """A kind of piece that came before. `alive` keeps objects whose ids are in its key."""

    alive: object
    count: int = 0
    steps: int = 0
    shortest: float = math.inf
    tried: bool = False
    recording: _Recording | None = None


@dataclass(frozen=True, slots=True)
class _Epoch:
    """What the pieces of one epoch share. kind: what a step does, beside the sizes of its inputs."""

    steps: Steps
    kind: Hashable
    consts: list[Tensor]

    @staticmethod
    def of(steps: Steps) -> _Epoch:
        leaves = leaves_of(steps.consts)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        numbers = tuple([leaf for leaf in leaves if not isinstance(leaf, Tensor)])
        layout = tuple([(tensor.shape, tensor.stride()) for tensor in tensors])
        consts = shape_of(steps.consts), numbers, layout
        return _Epoch(steps, (id(steps.live), phase_key(steps.phase), consts, tuple(steps.trainable)), tensors)

    def inputs(self, piece: Block) -> list[Tensor]:
        """All tensors that steps read or write: the net's entries, the optimiser's rates and state, constants, data."""
        steps = self.steps
        steps.live.restore_buffers()  # programs read and write the tensors of its tree
        data = [piece.x, piece.y] if piece.second is None else [piece.x, piece.y, piece.second]
        return [*steps.live.tree.values(), *steps.optimizer.rates, *steps.optimizer.state, *self.consts, *data]


class Recorder:
    """Takes the steps of blocks, and records the pieces that come often.

    first_seconds: what the first recording is expected to take. least_count: how often a piece must have come.
    longest_seconds: steps that take longer are not recorded. `programs`: recordings so far.
    """

    def __init__(
        self,
        first_seconds: float = FIRST_SECONDS,
        least_count: int = LEAST_COUNT,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        self.expected_seconds, self.least_count, self.longest_seconds = first_seconds, least_count, longest_seconds
        self.programs = 0
        self._seen: dict[Hashable, _Seen] = {}
        self._refused: set[Hashable] = set()  # kinds of steps, of whatever length
        self._notes: list[Diagnostic] = []
        self._last: _Epoch | None = None

    def __call__(self, steps: Steps, block: Block) -> list[Objective]:
        """The objectives of the steps of a block, detached; the live net and the optimiser are as after them."""
        if block.y.device.type != "cpu":
            return steps.one_by_one(block).objectives
        epoch = self._last
        if epoch is None or epoch.steps is not steps:
            epoch = self._last = _Epoch.of(steps)
        if epoch.kind in self._refused:
            return steps.one_by_one(block).objectives
        found: list[Objective] = []
        for piece in block.pieces(lengths_of(block)):
            found += self._taken(epoch, piece)
        return found

    def notes(self) -> Sequence[Diagnostic]:
        """Why steps are not recorded: each reason once."""
        told, self._notes = self._notes, []
        return told

    def _taken(self, epoch: _Epoch, piece: Block) -> list[Objective]:
        steps, optimizer = epoch.steps, epoch.steps.optimizer
        key = (epoch.kind, optimizer.key, piece.x.shape, piece.x.stride(), piece.size)
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= MOST_COUNTED:  # numbers that change every round make new kinds
                self._seen = {old: known for old, known in self._seen.items() if known.recording is not None}
            seen = self._seen[key] = _Seen(steps.phase)
        if seen.recording is not None:
            taken = seen.recording(epoch.inputs(piece))
            optimizer.advance(len(piece), taken.began)
            return taken.objectives
        self._count(seen, len(piece))
        if epoch.kind in self._refused or not self._worth_it(seen, steps.ahead):
            started = time.perf_counter()
            objectives = steps.one_by_one(piece).objectives
            seen.shortest = min(seen.shortest, (time.perf_counter() - started) / len(piece))
            return objectives
        seen.tried = True
        function = pure(steps, piece)
        inputs = [tensor.detach().clone() for tensor in epoch.inputs(piece)]
        objectives = steps.one_by_one(piece).objectives
        self._record(epoch.kind, seen, function, inputs)
        return objectives

    @staticmethod
    def _count(seen: _Seen, steps: int) -> None:
        seen.count, seen.steps = seen.count + 1, seen.steps + steps

    def _worth_it(self, seen: _Seen, ahead: float) -> bool:
        if seen.tried or seen.count <= self.least_count or self.programs >= MOST_PROGRAMS:
            return False
        return seen.shortest < self.longest_seconds and seen.steps * ahead * SAVED_SECONDS >= 2 * self.expected_seconds

    def _record(self, kind: Hashable, seen: _Seen, function: Callable[..., Taken], inputs: list[Tensor]) -> None:
        started = time.perf_counter()
        try:
            with Streams(0).isolated("recording"):  # the client's stream goes on as if nothing had been tried
                seen.recording = recorded(function, inputs)
            self.programs += 1
        except RandomNumbersError:  # nothing to tell: a net with dropout is as it should be
            self._refused.add(kind)
        except Exception as error:  # the steps themselves still run, and tell their own errors
            self._refused.add(kind)
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            if not isinstance(error, UnrecordableError):
                reason = f"{type(error).__name__}: {reason}"
            message = f"steps are taken one by one, slower and with the same numbers: {reason}"
            self._notes.append(Diagnostic("engine.plain_steps", message, 1.0))
        self.expected_seconds = min(self.expected_seconds, time.perf_counter() - started)


def lengths_of(block: Block) -> list[int]:
    """How a block is cut: full batches in pieces of `LENGTHS`, the longest first, then a shorter batch alone."""
    full, rest = divmod(block.y.shape[0], block.size)
    found = []
    for length in LENGTHS:
        found += [length] * (full // length)
        full %= length
    return found + [1] * bool(rest)


def pure(steps: Steps, piece: Block) -> Callable[..., Taken]:
    """The steps of a piece as a function of `_Epoch.inputs`, in which it changes what they change."""
    net = FunctionalCall(steps.live.net)
    names, moved, phase = list(steps.live.tree), list(steps.trainable), steps.phase
    made, size, twice = steps.optimizer.remaking(), piece.size, piece.second is not None
    shape, leaves = shape_of(steps.consts), leaves_of(steps.consts)

    def run(*tensors: Tensor) -> Taken:
        given = iter(tensors)
        tree = {name: next(given) for name in names}
        trainable = {name: tree[name].detach() for name in moved}
        optimizer = made(list(trainable.values()), given)
        own = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        consts: Consts = rebuilt(shape, iter(own))
        block = Block(next(given), next(given), size, next(given) if twice else None)

        def take(batch: Batch) -> tuple[Objective, Sequence[Tensor]]:
            parameters = {name: value.detach().requires_grad_() for name, value in trainable.items()}
            leaves = list(parameters.values())
            one: tuple[Objective, Sequence[Tensor]] = net.call(
                loss_and_gradients, tree | parameters, batch, consts, phase, leaves
            )
            return one

        return all_steps(take, phase, trainable, consts, optimizer, block)

    return run


class _Recording:
    """A recorded piece, and how its outputs are named."""

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


def recorded(function: Callable[..., Taken], inputs: Sequence[Tensor]) -> _Recording:
    """The recording of a function. It is called twice, because the first call might spoil what it holds.

    Raises `UnrecordableError` where it has not the function's bits, or what tracing raises.
    """
    wanted, drawn = _copies(inputs), generator_states()
    expected = function(*wanted)
    if generator_states() != drawn:
        raise RandomNumbersError("the loss or the net draws random numbers")
    recording = _Recording(compiled(lambda *tensors: _flat(function(*tensors)), _copies(inputs)), expected)
    for _ in range(2):
        changed = _copies(inputs)
        got = recording(changed)
        pairs = zip([*_flat(expected), *wanted], [*_flat(got), *changed], strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            raise UnrecordableError("what was recorded gives other bits")
    return recording


def _flat(taken: Taken) -> list[Tensor]:
    named = [[out.total, *out.terms.values(), *out.taps.values()] for out in taken.objectives]
    return [tensor.detach() for tensors in [*named, taken.began] for tensor in tensors]


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in inputs]
