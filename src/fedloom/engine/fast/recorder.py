"""Record steps that occur often, and replay their operators without the Python around them.

A step of a small net spends most of its time on modules, on autograd's graph and on Python. A recording turns the
operators of several steps, gradients and update included, into a program (`programs.py`). A program has inputs of fixed
sizes, and clients have many sizes, so blocks of batches are cut into pieces of a few lengths.
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
from fedloom.engine.leaves import from_leaves, leaves_of, structure_of
from fedloom.engine.steps import Block, EpochSteps, StepResults, loss_and_gradients, run_steps
from fedloom.methods.contract.contexts import Diagnostic
from fedloom.methods.contract.phases import Batch, Consts, Objective
from fedloom.nets.functional_call import FunctionalCall

# Full batches in a piece. A smaller last batch is a piece of its own.
LENGTHS = (8, 4, 2, 1)
# The first recording takes over a second; the time of later ones is known from it. A piece is recorded if, at its
# present frequency, this saves twice that time in the remaining rounds. Long steps gain next to nothing.
MIN_COUNT, FIRST_SECONDS, MAX_PROGRAMS = 3, 2.0, 64
SAVED_SECONDS = 0.00025  # per step, about
LONGEST_SECONDS = 0.01
MAX_COUNTED = 4096  # kinds of pieces


@dataclass(slots=True)
class _PieceStatistics:
    """Occurrences of a kind of piece. `alive` keeps the objects whose ids are in its key."""

    alive: object
    count: int = 0
    steps: int = 0
    shortest_seconds: float = math.inf
    tried: bool = False
    recording: _Recording | None = None


@dataclass(frozen=True, slots=True)
class _EpochKey:
    """Facts that pieces of one epoch share. kind: key of all that a step does, apart from the sizes of its inputs."""

    steps: EpochSteps
    kind: Hashable
    consts: list[Tensor]

    @staticmethod
    def of(steps: EpochSteps) -> _EpochKey:
        leaves = leaves_of(steps.consts)
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        numbers = tuple([leaf for leaf in leaves if not isinstance(leaf, Tensor)])
        layout = tuple([(tensor.shape, tensor.stride()) for tensor in tensors])
        consts = structure_of(steps.consts), numbers, layout
        kind = id(steps.loaded_net), phase_key(steps.phase), consts, tuple(steps.trainable)
        return _EpochKey(steps, kind, tensors)

    def inputs(self, piece: Block) -> list[Tensor]:
        """Return all tensors that steps read or write: net entries, optimiser rates and state, constants, data."""
        steps = self.steps
        steps.loaded_net.restore_buffers()  # programs read and write the tensors of its tree
        data = [piece.x, piece.y] if piece.second_view is None else [piece.x, piece.y, piece.second_view]
        return [*steps.loaded_net.tree.values(), *steps.optimizer.rates, *steps.optimizer.state, *self.consts, *data]


class Recorder:
    """A stepper that records the pieces of blocks that occur often.

    `programs` counts the recordings.

    Args:
        first_seconds: expected time of the first recording.
        min_count: occurrences of a piece before it may be recorded.
        longest_seconds: steps that take longer are not recorded.
    """

    def __init__(
        self,
        first_seconds: float = FIRST_SECONDS,
        min_count: int = MIN_COUNT,
        longest_seconds: float = LONGEST_SECONDS,
    ) -> None:
        self.expected_seconds, self.min_count, self.longest_seconds = first_seconds, min_count, longest_seconds
        self.programs = 0
        self._statistics: dict[Hashable, _PieceStatistics] = {}
        self._refused: set[Hashable] = set()  # kinds of steps, of any length
        self._notes: list[Diagnostic] = []
        self._last_epoch: _EpochKey | None = None

    def __call__(self, steps: EpochSteps, block: Block) -> list[Objective]:
        """Take the steps of a block, and return their detached objectives."""
        if block.y.device.type != "cpu":
            return steps.run(block).objectives
        epoch = self._last_epoch
        if epoch is None or epoch.steps is not steps:
            epoch = self._last_epoch = _EpochKey.of(steps)
        if epoch.kind in self._refused:
            return steps.run(block).objectives
        objectives: list[Objective] = []
        for piece in block.split(lengths_of(block)):
            objectives += self._run_piece(epoch, piece)
        return objectives

    def notes(self) -> Sequence[Diagnostic]:
        """Return the reasons why steps are not recorded, each once."""
        notes, self._notes = self._notes, []
        return notes

    def _run_piece(self, epoch: _EpochKey, piece: Block) -> list[Objective]:
        steps, optimizer = epoch.steps, epoch.steps.optimizer
        key = (epoch.kind, optimizer.key, piece.x.shape, piece.x.stride(), piece.batch_size)
        statistics = self._statistics.get(key)
        if statistics is None:
            if len(self._statistics) >= MAX_COUNTED:  # numbers that change every round make new kinds
                self._statistics = {k: old for k, old in self._statistics.items() if old.recording is not None}
            statistics = self._statistics[key] = _PieceStatistics(steps.phase)
        if statistics.recording is not None:
            results = statistics.recording(epoch.inputs(piece))
            optimizer.advance(len(piece), results.new_state)
            return results.objectives
        statistics.count += 1
        statistics.steps += len(piece)
        if epoch.kind in self._refused or not self._pays_off(statistics, steps.remaining_ratio):
            started = time.perf_counter()
            objectives = steps.run(piece).objectives
            seconds = (time.perf_counter() - started) / len(piece)
            statistics.shortest_seconds = min(statistics.shortest_seconds, seconds)
            return objectives
        statistics.tried = True
        function = pure(steps, piece)
        inputs = [tensor.detach().clone() for tensor in epoch.inputs(piece)]
        objectives = steps.run(piece).objectives
        self._record(epoch.kind, statistics, function, inputs)
        return objectives

    def _pays_off(self, statistics: _PieceStatistics, remaining_ratio: float) -> bool:
        if statistics.tried or statistics.count <= self.min_count or self.programs >= MAX_PROGRAMS:
            return False
        saved_seconds = statistics.steps * remaining_ratio * SAVED_SECONDS
        return statistics.shortest_seconds < self.longest_seconds and saved_seconds >= 2 * self.expected_seconds

    def _record(
        self,
        kind: Hashable,
        statistics: _PieceStatistics,
        function: Callable[..., StepResults],
        inputs: list[Tensor],
    ) -> None:
        started = time.perf_counter()
        try:
            with Streams(0).isolated("recording"):  # leaves the client's random numbers as they are
                statistics.recording = record(function, inputs)
            self.programs += 1
        except RandomNumbersError:  # no note: a net with dropout is as it should be
            self._refused.add(kind)
        except Exception as error:  # the plain steps still run, and raise their own errors
            self._refused.add(kind)
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            if not isinstance(error, UnrecordableError):
                reason = f"{type(error).__name__}: {reason}"
            message = f"steps are taken one by one, slower and with the same numbers: {reason}"
            self._notes.append(Diagnostic("engine.plain_steps", message, 1.0))
        self.expected_seconds = min(self.expected_seconds, time.perf_counter() - started)


def lengths_of(block: Block) -> list[int]:
    """Return the lengths of a block's pieces in batches: full batches by `LENGTHS`, then a smaller batch alone."""
    full_batches, last_samples = divmod(block.y.shape[0], block.batch_size)
    lengths = []
    for length in LENGTHS:
        lengths += [length] * (full_batches // length)
        full_batches %= length
    return lengths + [1] * bool(last_samples)


def pure(steps: EpochSteps, piece: Block) -> Callable[..., StepResults]:
    """Return the steps of a piece as a function of `_EpochKey.inputs`, which it updates as the steps do."""
    net = FunctionalCall(steps.loaded_net.net)
    names, trainable_names, phase = list(steps.loaded_net.tree), list(steps.trainable), steps.phase
    make_optimizer, batch_size, two_views = steps.optimizer.factory(), piece.batch_size, piece.second_view is not None
    structure, leaves = structure_of(steps.consts), leaves_of(steps.consts)

    def run(*inputs: Tensor) -> StepResults:
        tensors = iter(inputs)
        tree = {name: next(tensors) for name in names}
        trainable = {name: tree[name].detach() for name in trainable_names}
        optimizer = make_optimizer(list(trainable.values()), tensors)
        new_leaves = [next(tensors) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        consts: Consts = from_leaves(structure, iter(new_leaves))
        block = Block(next(tensors), next(tensors), batch_size, next(tensors) if two_views else None)

        def gradients_of(batch: Batch) -> tuple[Objective, Sequence[Tensor]]:
            parameters = {name: tensor.detach().requires_grad_() for name, tensor in trainable.items()}
            result: tuple[Objective, Sequence[Tensor]] = net.call(
                loss_and_gradients, tree | parameters, batch, consts, phase, list(parameters.values())
            )
            return result

        return run_steps(gradients_of, phase, trainable, consts, optimizer, block)

    return run


class _Recording:
    """The program of a piece, with the names of its outputs."""

    def __init__(self, program: Program, example: StepResults) -> None:
        self._program = program
        self._names = [(list(result.terms), list(result.taps)) for result in example.objectives]

    def __call__(self, inputs: Sequence[Tensor]) -> StepResults:
        with torch.no_grad():
            tensors = iter(self._program(*inputs))
        objectives = [
            Objective(next(tensors), {name: next(tensors) for name in terms}, {name: next(tensors) for name in taps})
            for terms, taps in self._names
        ]
        return StepResults(objectives, list(tensors))


def record(function: Callable[..., StepResults], inputs: Sequence[Tensor]) -> _Recording:
    """Record a function, and compare two replays with it bit for bit. The second one would show state that it keeps.

    Raises `UnrecordableError` if bits differ, and whatever tracing raises.
    """
    expected_inputs, generators = _copies(inputs), generator_states()
    expected = function(*expected_inputs)
    if generator_states() != generators:
        raise RandomNumbersError("the loss or the net draws random numbers")
    recording = _Recording(compiled(lambda *tensors: _flat(function(*tensors)), _copies(inputs)), expected)
    for _ in range(2):
        replayed_inputs = _copies(inputs)
        replayed = recording(replayed_inputs)
        pairs = zip([*_flat(expected), *expected_inputs], [*_flat(replayed), *replayed_inputs], strict=True)
        if not all(torch.equal(a, b) for a, b in pairs):
            raise UnrecordableError("what was recorded gives other bits")
    return recording


def _flat(results: StepResults) -> list[Tensor]:
    outputs = [[result.total, *result.terms.values(), *result.taps.values()] for result in results.objectives]
    return [tensor.detach() for tensors in [*outputs, results.new_state] for tensor in tensors]


def _copies(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in inputs]
