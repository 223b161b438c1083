"""Local steps of one client: objective, gradients and update, batch after batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.term_balance import gradient_norms
from fedloom.methods.contract.contexts import ClientContext
from fedloom.methods.contract.phases import Batch, Consts, Objective, Statistic, Train
from fedloom.nets.loaded_net import LoadedNet
from fedloom.nets.net import Net


@dataclass(frozen=True, slots=True)
class Block:
    """Batches of `size` that were gathered together, the last one perhaps shorter: x [n, ...], y [n], and a second view
    of x where the method asks for one."""

    x: Tensor
    y: Tensor
    size: int
    second: Tensor | None = None

    def __len__(self) -> int:
        """Number of batches."""
        return -(-self.y.shape[0] // self.size)

    def batches(self) -> list[Batch]:
        """The batches, where they lie: sums may depend on where in memory that is."""
        return [one.whole() for one in self.pieces([1] * len(self))]

    def pieces(self, lengths: Sequence[int]) -> list[Block]:
        """Consecutive blocks of so many batches each, where they lie."""
        if len(lengths) < 2:
            return [self] * len(lengths)
        rows = [length * self.size for length in lengths]
        rows[-1] -= sum(rows) - self.y.shape[0]
        seconds = [None] * len(rows) if self.second is None else torch.split(self.second, rows)
        parts = zip(torch.split(self.x, rows), torch.split(self.y, rows), seconds, strict=True)
        return [Block(x, y, self.size, second) for x, y, second in parts]

    def whole(self) -> Batch:
        """All of it as one batch."""
        return Batch(self.x, self.y, None, self.second)


class Taken(NamedTuple):
    """Steps that were taken: their objectives, detached, and the optimiser's state if it began with them."""

    objectives: list[Objective]
    began: Sequence[Tensor]


def trainable_names(names: Iterable[str], phase: Train, ctx: ClientContext) -> list[str]:
    """The parameters called `names` that a phase trains. Raises `ConfigError` if it trains none of them."""
    roles, nets = ctx.task.roles, phase.nets
    found = [n for n in names if roles[n] in phase.trains and (nets is None or n.partition(".")[0] in nets)]
    if not found:
        what = " and ".join(sorted(phase.trains))
        raise ConfigError(
            f"a phase of the method trains {what} alone, and all of that is frozen or absent in this model"
        )
    return found


def objective(net: Net, batch: Batch, consts: Consts, phase: Train) -> Objective:
    """The loss of a phase, as an objective in any case."""
    out = phase.loss(net, batch, consts)
    return out if isinstance(out, Objective) else Objective(out, terms={"loss": out})


def loss_and_gradients(
    net: Net, batch: Batch, consts: Consts, phase: Train, parameters: Sequence[Tensor], *, keep: bool = False
) -> tuple[Objective, Sequence[Tensor]]:
    """One step's objective and the gradients of its total. keep: whether its graph can be asked again."""
    out = objective(net, batch, consts, phase)
    return out, torch.autograd.grad(out.total, parameters, materialize_grads=True, retain_graph=keep or None)


def update(phase: Train, gradients: Sequence[Tensor], trainable: Tree, consts: Consts, optimizer: Optimizer) -> None:
    """Move the parameters: a phase's change of gradients, the optimiser, a phase's projection."""
    if phase.grad_map is not None:
        mapped = phase.grad_map(dict(zip(trainable, gradients, strict=True)), trainable, consts)
        gradients = tuple(mapped[name] for name in trainable)
    optimizer.step(gradients)
    if phase.project is not None:
        with torch.no_grad():
            projected = phase.project(trainable, consts)
            torch._foreach_copy_(optimizer.parameters, [projected[name] for name in trainable])


def all_steps(
    take: Callable[[Batch], tuple[Objective, Sequence[Tensor]]],
    phase: Train,
    trainable: Tree,
    consts: Consts,
    optimizer: Optimizer,
    block: Block,
) -> Taken:
    """All steps of a block."""
    objectives, began = [], not optimizer.state
    for batch in block.batches():
        out, gradients = take(batch)
        update(phase, gradients, trainable, consts, optimizer)
        objectives.append(detached(out))
    return Taken(objectives, optimizer.state if began else [])


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one epoch on a live net. `trainable`: the parameters that the phase trains, by name.

    ahead: how many times what has been done so far the run has still to do.
    """

    live: LoadedNet
    phase: Train
    consts: Consts
    trainable: Tree
    optimizer: Optimizer
    ahead: float = 1.0

    def one_by_one(self, block: Block) -> Taken:
        """The steps of a block."""
        net, parameters = self.live.net, list(self.trainable.values())

        def take(batch: Batch) -> tuple[Objective, Sequence[Tensor]]:
            return loss_and_gradients(net, batch, self.consts, self.phase, parameters)

        return all_steps(take, self.phase, self.trainable, self.consts, self.optimizer, block)

    def measured(self, batch: Batch) -> tuple[Objective, Mapping[str, Tensor]]:
        """One step, and the norms of its terms' gradients."""
        parameters = list(self.trainable.values())
        out, gradients = loss_and_gradients(self.live.net, batch, self.consts, self.phase, parameters, keep=True)
        norms = gradient_norms(out.terms, parameters)
        update(self.phase, gradients, self.trainable, self.consts, self.optimizer)
        return detached(out), norms


def one_by_one(steps: Steps, block: Block) -> list[Objective]:
    """The plain way to take the steps of a block."""
    return steps.one_by_one(block).objectives


def detached(out: Objective) -> Objective:
    """The objective without its graph."""
    terms = {name: term.detach() for name, term in out.terms.items()}
    return Objective(out.total.detach(), terms, {name: tap.detach() for name, tap in out.taps.items()})


class Tally:
    """What is kept of the steps of an epoch: statistics of taps, and loss terms. Never waits for a value."""

    def __init__(self, statistics: Mapping[str, Statistic], num_classes: int) -> None:
        self._statistics, self._classes, self.steps = statistics, num_classes, 0
        self._sums: dict[str, Tree] = {name: {} for name in statistics}
        self._terms: dict[str, list[Tensor]] = {}
        self._totals: list[Tensor] = []

    def next_epoch(self, *, keeps: bool) -> Tally:
        """A tally of the next epoch; it keeps the statistics so far if asked."""
        made = Tally(self._statistics, self._classes)
        if keeps:
            made._sums = self._sums
        return made

    def add(self, outs: Sequence[Objective], batches: Sequence[Batch]) -> None:
        """What the steps on some batches gave."""
        self.steps += len(outs)
        for out in outs:
            self._totals.append(out.total)
            for name, term in out.terms.items():
                self._terms.setdefault(name, []).append(term.detach())
        if self._statistics:
            for out, batch in zip(outs, batches, strict=True):
                self._sums = {
                    name: statistic.add(self._sums[name], out.taps[str(statistic.of)].detach(), batch, self._classes)
                    for name, statistic in self._statistics.items()
                }

    def collected(self) -> dict[str, Any]:
        """The statistics."""
        return {name: self._statistics[name].result(sums) for name, sums in self._sums.items()}

    def means(self) -> dict[str, float]:
        """Mean of each term over the steps."""
        return {name: sum(torch.stack(values).tolist()) / self.steps for name, values in self._terms.items()}

    def mean_total(self) -> float:
        """Mean of the loss over the steps."""
        totals: list[float] = torch.stack(self._totals).tolist()
        return sum(totals) / self.steps
