"""The check that a recorded step gives the bits of the step itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.core.streams import generator_states
from fedloom.engine.fast.recording import RecordedStep, Recording, UnrecordableError, program_of
from fedloom.engine.fast.step_kinds import ClientPhase, StepProgram
from fedloom.engine.steps import StepResults

_ALIGNMENT = 64  # bytes, of new tensors


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """The test of a recorded step against the step itself.

    Attributes:
        live: the inputs of the step, as it has left them.
        copies: the inputs as they were before it.
        generators: states of the global generators before it.
        state_count: number of tensors of the carried state before it.
    """

    phase: ClientPhase
    live: Sequence[Tensor]
    copies: Sequence[Tensor]
    generators: tuple[bytes, int, tuple[int, bytes]]
    state_count: int

    def program(self, recording: Recording, results: StepResults, samples: Any) -> StepProgram:
        """Return the recorded step as a program. Raises `UnrecordableError` if it gives other bits, played twice.

        Args:
            recording: the operators of one step.
            results: the step's objective, if it has one, and new tensors that it carries on.
            samples: the training set as C++ holds it.
        """
        torch_state, *other_states = self.generators
        now, *other_now = generator_states()
        if other_now != other_states:
            raise UnrecordableError("the loss or the net draws random numbers of Python or NumPy")
        carried, terms, taps = self.phase.steps.carried, dict[str, Tensor](), dict[str, Tensor]()
        numbers = carried.numbers_of_steps(carried.steps, 1)
        scalars = []
        for objective in results.objectives:  # one; none of a statistics pass
            terms, taps = dict(objective.terms), dict(objective.taps)
            scalars = [objective.total, *terms.values()]
        outputs = scalars, list(taps.values()), results.new_state
        step = program_of(recording.calls, self.live, outputs, numbers)
        if step.draws and getattr(self.phase.steps.phase, "ascent", None) is not None:
            raise UnrecordableError("the two passes of a step share their random numbers, as those of dropout")
        generator = torch.Generator()
        for _ in range(2):
            generator.set_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))
            job, inputs = self._replayed(step, samples, generator, numbers)
            error, values, replayed_taps, state, _ = job.results()
            if error:
                raise UnrecordableError(error)
            expected = torch.tensor([float(scalar) for scalar in scalars], dtype=torch.float64)
            pairs = [
                (expected, torch.tensor(values, dtype=torch.float64)),
                *zip(outputs[1], replayed_taps, strict=True),
            ]
            if results.new_state:
                pairs += zip(results.new_state, state, strict=True)
            pairs += zip(self.live, inputs, strict=True)
            same_draws = generator.get_state().numpy().tobytes() == now
            if not same_draws or not all(torch.equal(a.detach(), b) for a, b in pairs):
                raise UnrecordableError("what was recorded gives other bits")
        return StepProgram(step, list(terms), list(taps), carried.layout)

    def _replayed(
        self, step: RecordedStep, samples: Any, generator: torch.Generator, numbers: Sequence[float]
    ) -> tuple[Any, list[Tensor]]:
        """Replay the step on copies of the inputs. Return the job in C++, and the copies."""
        steps, inputs = self.phase.steps, copies_of(self.copies)
        tensors = iter(inputs)
        counts = len(steps.loaded_net.tree), len(steps.carried.rates), self.state_count, len(self.phase.consts)
        weights, rates, state, consts = ([next(tensors) for _ in range(count)] for count in counts)
        samples_per_batch = self.live[-1].shape[0]
        job = samples.replay(weights, False, rates, state, consts, samples_per_batch, 1)
        job.draw_from(generator)
        job.feed(step.program, list(tensors), True, numbers)
        job.run()
        return job, inputs


def copies_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a copy of each tensor; one that occurs twice is copied once."""
    copies = {id(tensor): _copy(tensor.detach()) for tensor in tensors}
    return [copies[id(tensor)] for tensor in tensors]


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy as far from a multiple of 64 bytes as the tensor is, because sums may depend on that."""
    offset = tensor.data_ptr() % _ALIGNMENT // tensor.element_size()
    if not offset:
        return tensor.clone()
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.new_empty(offset + span).as_strided(tensor.shape, tensor.stride(), offset).copy_(tensor)
