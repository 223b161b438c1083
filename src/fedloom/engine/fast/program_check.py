"""Kinds of steps that occur again, and the check that a recorded step gives the bits of the step itself."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedloom.core.streams import generator_states
from fedloom.engine.fast.recording import Recording, UnrecordableError, program_of
from fedloom.engine.keys import glance_of, values_of
from fedloom.engine.steps import StepResults, Steps
from fedloom.methods.contract.phases import Batch, Collect, Consts, Train
from fedloom.nets.loaded_net import LoadedNet


@dataclass(frozen=True, slots=True)
class StepProgram:
    """A recorded step: a program in C++, and the names of the loss terms and taps that it returns."""

    program: Any
    draws: bool  # whether it draws random numbers
    terms: list[str]
    taps: list[str]
    carried: Hashable  # the layout of the state that the next step needs


@dataclass(slots=True)
class StepKind:
    """Steps of one kind of phase on batches of one size."""

    count: int = 0
    program: StepProgram | None = None


@dataclass(slots=True)
class PhaseKind:
    """Phases whose steps do the same on tensors of the same layout, apart from sizes of batches. The first one's
    objects are kept, as their ids are in the key, but none of its steps, which would keep the nets of a run."""

    loaded_net: LoadedNet
    phase: Train | Collect
    consts: Consts
    layout: Hashable  # the key of its constants (`layout_of`)
    trainable: list[str]
    carried: Hashable
    refused: bool = False  # its steps cannot be replayed
    recurs: bool = True  # later rounds are expected to bring steps of this kind
    used: int = 0  # phases of all kinds up to its latest one
    steps: dict[Hashable, StepKind] = field(default_factory=dict)  # by the layout of a batch
    glance: Hashable = None  # `values_of` for phases of this kind; None if their objects may change

    def __post_init__(self) -> None:
        self.glance = glance_of(self.phase)

    def is_at_a_glance(self, steps: Steps, layout: Hashable) -> bool:
        """Whether steps with constants of a layout are quickly seen to be of this kind. False says nothing."""
        return (
            self.glance is not None
            and steps.loaded_net is self.loaded_net
            and layout == self.layout
            and values_of(steps.phase) == self.glance
            and steps.carried.key == self.carried
            and list(steps.trainable) == self.trainable
        )


@dataclass(slots=True)
class ClientPhase:
    """The steps of a client's phase, and their kind. consts: the tensors among their constants."""

    steps: Steps
    kind: PhaseKind
    consts: list[Tensor]

    def inputs(self, batch: Batch) -> list[Tensor]:
        steps = self.steps
        steps.loaded_net.restore_buffers()  # programs read and write the tensors of its tree
        data = [tensor for tensor in batch if tensor is not None]
        entries = steps.loaded_net.net.state_dict(keep_vars=True).values()  # the tensors that operators see
        return [*entries, *steps.carried.rates, *steps.carried.state, *self.consts, *data]


_ALIGNMENT = 64  # bytes, of new tensors


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """The test of a recorded step against the step itself."""

    phase: ClientPhase
    live: Sequence[Tensor]  # the inputs as the step has left them
    copies: Sequence[Tensor]  # the inputs before it
    generators: tuple[bytes, int, tuple[int, bytes]]  # states of the global ones before it
    state_count: int  # tensors of state that were carried into it

    def program(self, recording: Recording, results: StepResults, samples: Any) -> StepProgram:
        """Return recording and results as a program on C++ samples. Raises `UnrecordableError` for other bits."""
        torch_state, *other_states = self.generators
        now, *other_now = generator_states()
        if other_now != other_states:
            raise UnrecordableError("the loss or the net draws random numbers of Python or NumPy")
        carried, objective = self.phase.steps.carried, results.objective
        terms, taps = (objective.terms, objective.taps) if objective else ({}, {})
        scalars = [objective.total, *terms.values()] if objective else []
        outputs = scalars, list(taps.values()), results.new_state
        numbers = carried.numbers_of_steps(carried.steps, 1)
        program, draws = program_of(recording.calls, self.live, outputs, numbers)
        if draws and getattr(self.phase.steps.phase, "ascent", None) is not None:
            raise UnrecordableError("the two passes of a step share their random numbers, as those of dropout")
        generator = torch.Generator()
        for _ in range(2):  # a program that spoils what it captured shows it in the second run
            generator.set_state(torch.frombuffer(bytearray(torch_state), dtype=torch.uint8))
            job, inputs = self._replayed(program, samples, generator, numbers)
            error, values, replayed_taps, state, _ = job.results()
            if error:
                raise UnrecordableError(error)
            expected, replayed = (torch.tensor(list(map(float, v)), dtype=torch.float64) for v in (scalars, values))
            pairs = [(expected, replayed), *zip(outputs[1], replayed_taps, strict=True)]
            if results.new_state:
                pairs += zip(results.new_state, state, strict=True)
            pairs += zip(self.live, inputs, strict=True)
            same_draws = generator.get_state().numpy().tobytes() == now
            if not same_draws or not all(torch.equal(a.detach(), b) for a, b in pairs):
                raise UnrecordableError("what was recorded gives other bits")
        return StepProgram(program, draws, list(terms), list(taps), carried.layout)

    def _replayed(
        self, program: Any, samples: Any, generator: torch.Generator, numbers: Sequence[float]
    ) -> tuple[Any, list[Tensor]]:
        """Replay the program on copies of the inputs. Return the job in C++, and the copies."""
        steps, inputs = self.phase.steps, copies_of(self.copies)
        tensors = iter(inputs)
        counts = len(steps.loaded_net.tree), len(steps.carried.rates), self.state_count, len(self.phase.consts)
        weights, rates, state, consts = ([next(tensors) for _ in range(count)] for count in counts)
        samples_per_batch = self.live[-1].shape[0]
        job = samples.replay(weights, False, rates, state, consts, samples_per_batch, 1)
        job.draw_from(generator)
        job.feed(program, list(tensors), True, numbers)
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
