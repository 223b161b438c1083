"""Kinds of steps that occur again, with the programs that replay them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from torch import Tensor

from fedloom.engine.fast.recording import RecordedStep
from fedloom.engine.keys import glance_of, values_of
from fedloom.engine.statistics_pass import Steps
from fedloom.engine.steps import Block
from fedloom.methods.contract.phases import Collect, Consts, Train
from fedloom.nets.loaded_net import LoadedNet


@dataclass(frozen=True, slots=True)
class StepProgram:
    """A recorded step, the names of the loss terms and taps that it returns, and the layout of what it carries on."""

    step: RecordedStep
    terms: list[str]
    taps: list[str]
    carried: Hashable


@dataclass(slots=True)
class StepKind:
    """Steps of one kind of phase on batches of one size."""

    count: int = 0
    program: StepProgram | None = None


@dataclass(slots=True)
class PhaseKind:
    """Phases whose steps do the same on tensors of the same layout, apart from sizes of batches.

    The first one's objects are kept, because their ids are in the key. No more of its steps is kept: they refer to the
    worker, and that to this stepper, so the nets of a run would stay until the garbage collector comes by.

    Attributes:
        layout: the key of its constants (`layout_of`).
        refused: whether its steps cannot be replayed.
        recurs: whether later rounds are expected to bring steps of this kind.
        used: the number of phases of all kinds up to its latest one.
        steps: kinds of its steps, by the layout of a batch.
        glance: what `values_of` gives for phases of this kind; None for those that are not seen at a glance.
    """

    loaded_net: LoadedNet
    phase: Train | Collect
    consts: Consts
    layout: Hashable
    trainable: list[str]
    carried: Hashable
    refused: bool = False
    recurs: bool = True
    used: int = 0
    steps: dict[Hashable, StepKind] = field(default_factory=dict)
    glance: Hashable = None

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

    def inputs(self, batch: Block) -> list[Tensor]:
        """Return all tensors that a step reads or writes: net entries, rates, carried state, constants, samples."""
        steps = self.steps
        steps.loaded_net.restore_buffers()  # programs read and write the tensors of its tree
        data = [batch.x, batch.y] if batch.second_view is None else [batch.x, batch.y, batch.second_view]
        entries = steps.loaded_net.net.state_dict(keep_vars=True).values()  # the tensors that operators see
        return [*entries, *steps.carried.rates, *steps.carried.state, *self.consts, *data]
