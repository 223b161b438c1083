"""Local steps of one client: objective, gradients and update, batch after batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.streams import remember_draws
from fedloom.core.trees import Tree
from fedloom.engine.optimizer import Optimizer, moved
from fedloom.engine.round_report import gradient_norms
from fedloom.methods.contract.contexts import ClientContext
from fedloom.methods.contract.phases import Batch, Consts, Objective, Train
from fedloom.methods.contract.sample_statistics import Statistic
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net


class StepResults(NamedTuple):
    """The detached objective of a step, None for one without a loss, and the new tensors that the next step needs.

    These are first moments of an optimiser, or sums of statistics.
    """

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
    """Return the objective of a batch, and the gradients of its total in the order of the parameters.

    Parameters without influence get zeros. With `keep_graph`, the net's consts allow for more gradients of the phase.
    """
    result = objective(net, batch, consts, phase)
    gradients = torch.autograd.grad(result.total, parameters, materialize_grads=True, retain_graph=keep_graph or None)
    return result, gradients


def update(
    phase: Train, gradients: Sequence[Tensor], trainable: Tree, consts: Consts, optimizer: Optimizer
) -> Sequence[Tensor]:
    """Update the parameters `trainable` in place, and return the gradients of the step as the phase changed them.

    First the phase changes the gradients, which are in the parameters' order; then the optimizer takes its step; then
    the phase projects the parameters. Both functions of the phase read its consts.
    """
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
    """Return the sums of statistics with a batch added; sums are empty before the first batch.

    `values` returns the tensor that a statistic is taken of, [B, ...].
    """
    return {
        name: statistic.add(sums[name], values(name, statistic), batch, classes)
        for name, statistic in statistics.items()
    }


def pass_function(name: str, statistic: Statistic) -> Callable[[Net, Batch, Consts], Tensor]:
    """Return the function that a statistics pass evaluates. Raises `TypeError` if the statistic names a tap instead."""
    if not callable(statistic.of):
        raise TypeError(f"statistic '{name}' of a pass names a tap, '{statistic.of}': it needs a function of the net")
    return statistic.of


@dataclass(slots=True)
class EpochSteps:
    """All that the steps of one epoch need, apart from the batches.

    trainable: the parameters that the phase trains, by name. remaining_ratio: remaining rounds divided by finished
    rounds; decides whether a speed-up pays off. set_modes: sets the modules' training and evaluation modes.
    """

    reads: ClassVar[bool] = False  # steps write weights
    loaded_net: LoadedNet
    phase: Train
    consts: Consts
    trainable: Tree
    carried: Optimizer
    remaining_ratio: float = 1.0
    set_modes: Callable[[], None] = lambda: None

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
        draw_again = None if phase.ascent is None else remember_draws(batch.y.device)
        result, gradients = loss_and_gradients(net, batch, self.consts, phase, parameters, keep_graph=measured)
        norms = gradient_norms(result.terms, parameters) if measured else {}
        if phase.ascent is not None and draw_again is not None:
            with torch.no_grad():
                named = dict(zip(self.trainable, gradients, strict=True))
                moves = phase.ascent(named, self.trainable, self.consts)
            with moved(self.loaded_net, self.trainable, moves):
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


class StepTable(NamedTuple):
    """The objectives of some steps as numbers: the total of each, loss terms by name, and the taps of each by name."""

    totals: list[float]
    terms: Mapping[str, list[float]]
    taps: Sequence[Mapping[str, Tensor]]


class Tally:
    """Sums over the steps of an epoch: statistics of taps, loss terms and totals. It never waits for a device."""

    def __init__(self, statistics: Mapping[str, Statistic], num_classes: int) -> None:
        self._statistics, self._classes, self.steps = statistics, num_classes, 0
        self._sums: dict[str, Tree] = {name: {} for name in statistics}
        self._terms: dict[str, list[Tensor | list[float]]] = {}
        self._totals: list[Tensor | list[float]] = []

    def next_epoch(self, *, keep_statistics: bool) -> Tally:
        """Return a tally for the next epoch, with the statistics so far if `keep_statistics`."""
        tally = Tally(self._statistics, self._classes)
        if keep_statistics:
            tally._sums = self._sums
        return tally

    def add(self, result: Objective, batch: Batch) -> None:
        """Add the objective of a step. The batch is only read if there are statistics."""
        self.steps += 1
        self._totals.append(result.total.detach().reshape(1))
        for name, term in result.terms.items():
            self._terms.setdefault(name, []).append(term.detach().reshape(1))
        self._add_taps(result.taps, batch)

    def add_table(self, table: StepTable, batches: Sequence[Batch]) -> None:
        """Add a table of objectives; `batches` are those of its steps, and only read if there are statistics."""
        self.steps += len(table.totals)
        self._totals.append(table.totals)
        for name, values in table.terms.items():
            self._terms.setdefault(name, []).append(values)
        for taps, batch in zip(table.taps, batches, strict=True) if self._statistics else ():
            self._add_taps(taps, batch)

    def _add_taps(self, taps: Mapping[str, Tensor], batch: Batch) -> None:
        if self._statistics:
            taps = {name: tap.detach() for name, tap in taps.items()}
            self._sums = add_statistics(self._statistics, self._sums, tap_of(taps), batch, self._classes)

    def statistics(self) -> dict[str, Any]:
        """Return the finished statistics by name."""
        return {name: self._statistics[name].result(sums) for name, sums in self._sums.items()}

    def mean_terms(self) -> dict[str, float]:
        """Return the mean of each loss term over the steps."""
        return {name: sum(_numbers(pieces)) / self.steps for name, pieces in self._terms.items()}

    def mean_total(self) -> float:
        """Return the mean of the loss over the steps."""
        return sum(_numbers(self._totals)) / self.steps


def _numbers(pieces: Sequence[Tensor | list[float]]) -> list[float]:
    """Vectors and lists as one list. Vectors are read from their device at once."""
    if len(pieces) == 1 and isinstance(pieces[0], list):
        return pieces[0]
    vectors = [torch.tensor(p, dtype=torch.float64) if isinstance(p, list) else p for p in pieces]
    numbers: list[float] = torch.cat(vectors).tolist()
    return numbers
