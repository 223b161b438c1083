"""Local steps of one client: objective, gradients and update, batch after batch; and the batches of a statistics pass.

A pass has the form of steps, so that engines can speed it up as they do training: a batch changes sums instead of
weights, and the sums are what an optimiser's state is to a training phase."""

import copy
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.streams import remember_draws
from fedloom.core.trees import Tree
from fedloom.engine.optimizer import Optimizer, moved
from fedloom.engine.round_report import gradient_norms
from fedloom.methods.contract.contexts import ClientContext
from fedloom.methods.contract.phases import Batch, Collect, Consts, Objective, Train
from fedloom.methods.contract.sample_statistics import ClassCovariances, ClassMeans, Moments, SampleMean, Statistic
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net


class StepResults(NamedTuple):
    """The detached objective of a step, None for one without a loss, and the new tensors that the next step needs.
    These are first moments of an optimiser, or sums of statistics."""

    objective: Objective | None
    new_state: Sequence[Tensor]


def trainable_names(names: Iterable[str], phase: Train, ctx: ClientContext) -> list[str]:
    """Return those of the parameters `names` that a phase trains. Raises `ConfigError` if there are none."""
    roles, nets = ctx.task.roles, phase.nets
    trainable = [n for n in names if roles[n] in phase.trains and (nets is None or n.partition(".")[0] in nets)]
    if not trainable:
        trained_roles = " and ".join(sorted(phase.trains))
        raise ConfigError(
            f"a phase of the method trains {trained_roles} alone, and all of that is frozen or absent in this model"
        )
    return trainable


def objective(net: Net, batch: Batch, consts: Consts, phase: Train) -> Objective:
    """Return the loss of a phase on a batch; a plain tensor becomes an objective with the term "loss"."""
    loss = phase.loss(net, batch, consts)
    return loss if isinstance(loss, Objective) else Objective(loss, terms={"loss": loss})


def loss_and_gradients(
    net: Net, batch: Batch, consts: Consts, phase: Train, parameters: Sequence[Tensor], *, keep_graph: bool = False
) -> tuple[Objective, Sequence[Tensor]]:
    """Return the objective of a batch, and the gradients of its total in the order of the parameters. Parameters
    without influence get zeros. With `keep_graph`, the net's consts allow for more gradients of the phase."""
    result = objective(net, batch, consts, phase)
    gradients = torch.autograd.grad(result.total, parameters, materialize_grads=True, retain_graph=keep_graph or None)
    return result, gradients


def update(
    phase: Train, gradients: Sequence[Tensor], trainable: Tree, consts: Consts, optimizer: Optimizer
) -> Sequence[Tensor]:
    """Update the parameters `trainable` in place: the phase changes the gradients, the optimizer takes its step, the
    phase projects the parameters. Return the gradients as the phase changed them."""
    if phase.grad_map is not None:
        mapped = phase.grad_map(dict(zip(trainable, gradients, strict=True)), trainable, consts)
        gradients = tuple(mapped[name] for name in trainable)
    optimizer.step(gradients)
    if phase.project is not None:
        with torch.no_grad():
            projected = phase.project(trainable, consts)
            torch._foreach_copy_(optimizer.parameters, [projected[name] for name in trainable])
    return gradients


def add_statistics(
    statistics: Mapping[str, Statistic],
    sums: Mapping[str, Tree],
    values: Callable[[str, Statistic], Tensor],
    batch: Batch,
    classes: int,
) -> dict[str, Tree]:
    """Return the sums, empty at first, with a batch added; `values` gives a statistic's tensor [B, ...]."""
    return {name: of.add(sums[name], values(name, of), batch, classes) for name, of in statistics.items()}


def pass_function(name: str, statistic: Statistic) -> Callable[[Net, Batch, Consts], Tensor]:
    """Return the function that a statistics pass evaluates. Raises `TypeError` if the statistic names a tap instead."""
    if not callable(statistic.of):
        raise TypeError(f"statistic '{name}' of a pass names a tap, '{statistic.of}': it needs a function of the net")
    return statistic.of


@dataclass(slots=True)
class EpochSteps:
    """All that the steps of one epoch need, apart from the batches."""

    reads: ClassVar[bool] = False  # steps write weights
    loaded_net: LoadedNet
    phase: Train
    consts: Consts
    trainable: Tree  # the parameters that the phase trains
    carried: Optimizer
    remaining_ratio: float = 1.0  # `Client.remaining_ratio`
    set_modes: Callable[[], None] = lambda: None  # sets the modules' training and evaluation modes
    draws: bool = True  # False if steps draw no random numbers, which a second pass would have to draw again

    def run(self, batch: Batch) -> StepResults:
        """Take one step. The new state is the optimiser's if it had none before."""
        had_state = bool(self.carried.state)
        result, gradients, _ = self._gradients(batch, measured=False)
        update(self.phase, gradients, self.trainable, self.consts, self.carried)
        return StepResults(detached(result), [] if had_state else self.carried.state)

    def run_measured(self, batch: Batch) -> tuple[Objective, Mapping[str, Tensor]]:
        """Take one step. Return its detached objective and the norm [] of the gradient of each term."""
        result, gradients, norms = self._gradients(batch, measured=True)
        update(self.phase, gradients, self.trainable, self.consts, self.carried)
        return detached(result), norms

    def _gradients(self, batch: Batch, *, measured: bool) -> tuple[Objective, Sequence[Tensor], Mapping[str, Tensor]]:
        """Return the objective of a batch, the gradients of the step, and with `measured` the norms of the terms'."""
        net, parameters, phase = self.loaded_net.net, list(self.trainable.values()), self.phase
        draw_again = remember_draws(batch.y.device) if phase.ascent is not None and self.draws else None
        result, gradients = loss_and_gradients(net, batch, self.consts, phase, parameters, keep_graph=measured)
        norms = gradient_norms(result.terms, parameters) if measured else {}
        if phase.ascent is not None:
            with torch.no_grad():
                named = dict(zip(self.trainable, gradients, strict=True))
                moves = phase.ascent(named, self.trainable, self.consts)
            with moved(self.loaded_net, self.trainable, moves):
                if draw_again is not None:
                    draw_again()
                _, gradients = loss_and_gradients(net, batch, self.consts, phase, parameters)
        return result, gradients, norms


def detached(result: Objective) -> Objective:
    """Return an objective without its graph."""
    terms = {name: term.detach() for name, term in result.terms.items()}
    return Objective(result.total.detach(), terms, {name: tap.detach() for name, tap in result.taps.items()})


def tap_of(taps: Mapping[str, Tensor]) -> Callable[[str, Statistic], Tensor]:
    """Return the function that gives a statistic its tap of the loss."""
    return lambda _, statistic: taps[str(statistic.of)]


_OF_ONE_LAYOUT = (ClassMeans, SampleMean, ClassCovariances, Moments)  # their sums have the same names after every batch


class Sums:
    """The sums of a pass's statistics over samples of `classes` classes, which its batches (`steps`) carry on."""

    def __init__(self, statistics: Mapping[str, Statistic], classes: int) -> None:
        self.trees: dict[str, Tree] = {name: {} for name in statistics}
        self.steps, self.rates = 0, list[Tensor]()  # no sum has a learning rate
        self.key: Hashable = "sums", classes  # all that the arithmetic depends on, apart from statistics and tensors
        # whether batches may bring new sums; a subclass may add up in another way, so the type itself counts
        self.grows = not all(type(statistic) in _OF_ONE_LAYOUT for statistic in statistics.values())

    @property
    def state(self) -> list[Tensor]:
        return [tensor for tree in self.trees.values() for tensor in tree.values()]

    @property
    def layout(self) -> Hashable:
        return tuple([(name, entry) for name, tree in self.trees.items() for entry in tree])

    def kind_of_step(self, number: int) -> Hashable:
        """Return a key that batches share whose sums so far have the same layout. `number` counts from 1."""
        return number if self.grows else number > 1

    def numbers_of_steps(self, first: int, steps: int) -> list[float]:
        """Return no numbers: none depends on how many batches came before."""
        return []

    def advance(self, steps: int, state: Sequence[Tensor], layout: Any) -> None:
        """Take over `state`, the sums after some steps that were taken elsewhere, and their names in `layout`."""
        self.steps += steps
        self.trees = {name: {} for name in self.trees}
        for (name, entry), tensor in zip(layout, state, strict=True):
            self.trees[name][entry] = tensor

    def separate(self) -> "Sums":
        """Return sums of the same layout at -0.0, to which a first batch is added without a change of its bits."""
        separate = copy.copy(self)
        separate.trees = {
            name: {entry: torch.full_like(tensor, -0.0) for entry, tensor in tree.items()}
            for name, tree in self.trees.items()
        }
        return separate


@dataclass(slots=True)
class PassSteps:
    """All that a statistics pass needs, apart from the batches. `set_modes` sets evaluation mode."""

    reads: ClassVar[bool] = True  # a pass leaves the weights as they are
    trainable: ClassVar[Tree] = {}
    loaded_net: LoadedNet
    phase: Collect
    consts: Consts
    classes: int
    remaining_ratio: float
    set_modes: Callable[[], object]
    carried: Sums = field(init=False)

    def __post_init__(self) -> None:
        self.carried = Sums(self.phase.statistics, self.classes)

    @torch.no_grad()
    def run(self, batch: Batch) -> StepResults:
        net = self.loaded_net.net

        def values(name: str, statistic: Statistic) -> Tensor:
            return pass_function(name, statistic)(net, batch, self.consts)

        self.carried.trees = add_statistics(self.phase.statistics, self.carried.trees, values, batch, self.classes)
        self.carried.steps += 1
        return StepResults(None, self.carried.state)

    def results(self) -> dict[str, Any]:
        return {name: self.phase.statistics[name].result(sums) for name, sums in self.carried.trees.items()}


Steps: TypeAlias = EpochSteps | PassSteps
