"""Local steps of one client: objective, gradients and update, batch after batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.engine.constants import Stacked
from fedloom.engine.keys import phase_key
from fedloom.engine.optim import Optimizer, Remaking
from fedloom.engine.pulls import gradient_norms
from fedloom.engine.recorded import Recorder, Taken
from fedloom.methods.method import ClientContext
from fedloom.methods.phases import Batch, Consts, Objective, Statistic, Train
from fedloom.nets.functional import Functional
from fedloom.nets.live import Live
from fedloom.nets.net import Net


@dataclass(frozen=True, slots=True)
class Block:
    """Batches of `size` that were gathered together, the last one perhaps shorter: x [n, ...], y [n]."""

    x: Tensor
    y: Tensor
    size: int

    def __len__(self) -> int:
        """Number of batches."""
        return -(-len(self.y) // self.size)

    def batches(self) -> list[Batch]:
        """The batches, where they lie: sums may depend on where in memory that is."""
        parts = zip(torch.split(self.x, self.size), torch.split(self.y, self.size), strict=True)
        return [Batch(x, y) for x, y in parts]

    def singles(self) -> list[Block]:
        """Each batch as a block."""
        return [Block(batch.x, batch.y, self.size) for batch in self.batches()]


def moves(name: str, phase: Train, ctx: ClientContext) -> bool:
    """Whether a phase trains the parameter `name`."""
    return ctx.task.roles[name] in phase.trains and (phase.nets is None or name.partition(".")[0] in phase.nets)


def objective(net: Net, batch: Batch, consts: Consts, phase: Train) -> Objective:
    """The loss of a phase, as an objective in any case."""
    out = phase.loss(net, batch, consts)
    return out if isinstance(out, Objective) else Objective(out, terms={"loss": out})


def update(phase: Train, gradients: Sequence[Tensor], moving: Tree, consts: Consts, optimizer: Optimizer) -> None:
    """Move the parameters: a phase's change of gradients, the optimiser, a phase's projection."""
    if phase.grad_map is not None:
        mapped = phase.grad_map(dict(zip(moving, gradients, strict=True)), moving, consts)
        gradients = tuple(mapped[name] for name in moving)
    optimizer.step(gradients)
    if phase.project is not None:
        with torch.no_grad():
            projected = phase.project(moving, consts)
            torch._foreach_copy_(optimizer.parameters, [projected[name] for name in moving])


@dataclass(frozen=True, slots=True)
class Pure:
    """The steps of a block of batches of `size` as a function of tensors alone: the net's entries by name, the
    optimiser's state, constants (the client's own, then the shared ones), inputs, labels. Entries and state are changed
    as the steps do.

    call: runs a function of the net, a batch and more with the entries given.
    """

    call: Callable[..., Any]
    entries: Sequence[str]
    moving: Sequence[str]
    phase: Train
    consts: Stacked
    made: Remaking
    size: int

    def __call__(self, *tensors: Tensor) -> Taken:
        given = iter(tensors)
        tree = {name: next(given) for name in self.entries}
        moving = {name: tree[name].detach() for name in self.moving}
        optimizer = self.made(list(moving.values()), given)
        own = [next(given) for _ in self.consts.stacked]
        consts = self.consts.with_tensors(given).of_one(own)

        def take(batch: Batch) -> tuple[Objective, Sequence[Tensor]]:
            parameters = {name: value.detach().requires_grad_() for name, value in moving.items()}
            one: tuple[Objective, Sequence[Tensor]]
            leaves = list(parameters.values())
            one = self.call(differentiated, tree | parameters, batch, consts, self.phase, leaves)
            return one

        return all_steps(take, self.phase, moving, consts, optimizer, Block(next(given), next(given), self.size))


def differentiated(
    net: Net, batch: Batch, consts: Consts, phase: Train, parameters: Sequence[Tensor], *, keep: bool = False
) -> tuple[Objective, Sequence[Tensor]]:
    """One step's objective and the gradients of its total. keep: whether its graph can be asked again."""
    out = objective(net, batch, consts, phase)
    return out, torch.autograd.grad(out.total, parameters, materialize_grads=True, retain_graph=keep or None)


def all_steps(
    take: Callable[[Batch], tuple[Objective, Sequence[Tensor]]],
    phase: Train,
    moving: Tree,
    consts: Consts,
    optimizer: Optimizer,
    block: Block,
) -> Taken:
    """All steps of a block. Beside the objectives: the optimiser's state, if it began here."""
    objectives, began = [], not optimizer.state
    for batch in block.batches():
        out, gradients = take(batch)
        update(phase, gradients, moving, consts, optimizer)
        objectives.append(detached(out))
    return Taken(objectives, optimizer.state if began else [])


class Steps:
    """The steps of one epoch on a live net. Those of a block come as one recording where that pays."""

    def __init__(
        self,
        recorder: Recorder,
        live: Live,
        phase: Train,
        consts: Consts,
        moving: Tree,
        optimizer: Optimizer,
        *,
        recordable: bool,
    ) -> None:
        self._recorder, self._live, self._phase, self._moving = recorder, live, phase, moving
        self._plain, self._optimizer, self._recordable = consts, optimizer, recordable
        if recordable:
            self._consts = Stacked.of([consts])
            self._key = (id(live), phase_key(phase), self._consts.shape, self._consts.kinds(), tuple(moving))

    def taken(self, block: Block) -> list[Objective]:
        """The steps of a block: their objectives, detached."""
        if not self._recordable:
            return self._eager(block).objectives
        optimizer = self._optimizer
        key = (self._key, optimizer.key, block.size)
        inputs = [*self._live.tree.values(), *optimizer.state, *self._consts.tensors(), block.x, block.y]
        before, made = optimizer.steps, optimizer.remaking()
        taken = self._recorder.take(
            key,
            self._phase,
            lambda: self._eager(block),
            lambda *tensors: self._pure(made, block.size)(*tensors),
            inputs,
            steps=len(block),
        )
        if optimizer.steps == before:  # it was a recording
            optimizer.advance(len(block), taken.tensors)
        return taken.objectives

    def probed(self, batch: Batch) -> tuple[Objective, Mapping[str, Tensor]]:
        """One step, and the norms of its terms' gradients."""
        parameters = list(self._moving.values())
        out, gradients = differentiated(self._live.net, batch, self._plain, self._phase, parameters, keep=True)
        norms = gradient_norms(out.terms, parameters)
        update(self._phase, gradients, self._moving, self._plain, self._optimizer)
        return detached(out), norms

    def _pure(self, made: Remaking, size: int) -> Pure:
        call = Functional(self._live.net).call
        return Pure(call, list(self._live.tree), list(self._moving), self._phase, self._consts, made, size)

    def _eager(self, block: Block) -> Taken:
        net, parameters = self._live.net, list(self._moving.values())

        def take(batch: Batch) -> tuple[Objective, Sequence[Tensor]]:
            return differentiated(net, batch, self._plain, self._phase, parameters)

        return all_steps(take, self._phase, self._moving, self._plain, self._optimizer, block)


def detached(out: Objective) -> Objective:
    """The objective without its graph."""
    terms = {name: term.detach() for name, term in out.terms.items()}
    return Objective(out.total.detach(), terms, {name: tap.detach() for name, tap in out.taps.items()})


class Tally:
    """What is kept of the steps of a last epoch: statistics of taps, and loss terms. Never waits for a value."""

    def __init__(self, statistics: Mapping[str, Statistic], num_classes: int) -> None:
        self._statistics, self._classes, self.steps = statistics, num_classes, 0
        self._sums: dict[str, Tree] = {name: {} for name in statistics}
        self._terms: dict[str, list[Tensor]] = {}

    def add(self, outs: Sequence[Objective], block: Block) -> None:
        """What the steps of a block gave."""
        self.steps += len(outs)
        for out in outs:
            for name, term in out.terms.items():
                self._terms.setdefault(name, []).append(term.detach())
        if self._statistics:
            for out, batch in zip(outs, block.batches(), strict=True):
                self._sums = {
                    name: statistic.add(self._sums[name], out.taps[str(statistic.of)].detach(), batch, self._classes)
                    for name, statistic in self._statistics.items()
                }

    def collected(self) -> dict[str, Any]:
        return {name: self._statistics[name].result(sums) for name, sums in self._sums.items()}

    def means(self) -> dict[str, float]:
        return {name: sum(torch.stack(values).tolist()) / self.steps for name, values in self._terms.items()}
