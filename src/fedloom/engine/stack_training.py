"""One training phase of a stack of clients, under `torch.vmap`.

Rows of a stack are its members, the largest first: those who still have batches are always the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.engine.client import CPU, Worker
from fedloom.engine.constants import Stacked, placed
from fedloom.engine.keys import phase_key
from fedloom.engine.members import Member, Parts, StackedNet, batch_of, dims, first_rows, passed, put_rows
from fedloom.engine.optim import Optimizer
from fedloom.engine.pulls import gradient_norms
from fedloom.engine.recorded import Recorder, Taken
from fedloom.engine.steps import moves, objective
from fedloom.methods.phases import Batch, Objective, Train


class Training:
    """One training phase of a stack. Rows of `tree` are the members, the largest first."""

    def __init__(
        self,
        worker: Worker,
        recorder: Recorder,
        net: StackedNet,
        phase: Train,
        members: list[Member],
        tree: Tree,
    ) -> None:
        self.worker, self.recorder, self.net = worker, recorder, net
        self.phase, self.members, self.tree = phase, members, tree
        ctx = members[0].job.ctx
        self.classes = ctx.task.num_classes
        self.moving = [name for name in self.net.parameters if moves(name, phase, ctx)]
        self.consts = Stacked.of([member.consts for member in members]).on(worker.device)
        self.optimizer = Optimizer(phase.optimizer or worker.local.optimizer, [])
        self.key = (id(self.net), phase_key(phase), self.consts.shape, tuple(self.moving))
        self.terms: dict[str, Tensor] = {}
        self.sums: dict[str, Tree] = {name: {} for name in phase.collect}

    def run(self) -> Tree:
        """The weights after the phase."""
        phase, members, worker = self.phase, self.members, self.worker
        parts = [
            [part for _ in range(phase.epochs) for part in worker.shuffled(member.job, member.draws)]
            for member in members
        ]
        steps = [len(own) for own in parts]
        parameters: Tree = {}
        for step in range(steps[0]):
            active = sum(count > step for count in steps)
            if phase.refresh and step % (steps[0] // phase.epochs) == 0:
                passed(worker, self.net, phase.refresh, members, self.tree)
                self.consts = Stacked.of([member.consts for member in members]).on(worker.device)
            if len(parameters) == 0 or active < len(next(iter(parameters.values()))):
                parameters = self._narrowed(active)
            self.net.train()
            draws = [member.draws for member in members[:active]]
            batch = batch_of(worker, [own[step] for own in parts[:active]], draws)
            last_epoch = [step >= count - count // phase.epochs for count in steps[:active]]
            ends = [step == count - 1 for count in steps[:active]]
            gradients = self._step(batch, parameters, last_epoch, ends)
            if step == 0:
                parameters = self._relaid(parameters, gradients)
        self._settle(parts)
        return self.tree

    def _narrowed(self, active: int) -> Tree:
        """The parameters of the first `active` members that this phase moves, as leaves over the same memory."""
        parameters = {name: self.tree[name][:active].detach().requires_grad_() for name in self.moving}
        self.optimizer.narrow(list(parameters.values()))
        return parameters

    def _relaid(self, parameters: Tree, gradients: Sequence[Tensor]) -> Tree:
        """The parameters in the memory order of their gradients, in which updates are several times faster."""
        moved = False
        for name, gradient in zip(self.moving, gradients, strict=True):
            if gradient.stride() != parameters[name].stride():
                self.tree[name] = torch.empty_like(gradient).copy_(self.tree[name])
                moved = True
        return self._narrowed(len(gradients[0])) if moved else parameters

    def _step(self, batch: Batch, parameters: Tree, last_epoch: list[bool], ends: list[bool]) -> Sequence[Tensor]:
        """One step of the members that still have batches; returns their gradients."""
        active, phase = len(ends), self.phase
        entries = {name: value[:active] for name, value in self.tree.items()} | parameters
        own = self.consts.first(active)
        probed = any(self.members[row].job.probe for row, over in enumerate(ends) if over) and self.optimizer.steps
        if probed:
            ((_, terms, taps),), gradients = self._taken(entries, self.consts, own, batch, keep_graph=True)
            self._probe(terms, parameters, ends)
        else:
            inputs = [*entries.values(), *own, *self.consts.tensors(), *(t for t in batch if t is not None)]
            key = (self.key, self.consts.kinds())
            ((_, terms, taps),), gradients = self.recorder.take(
                key, phase, lambda: self._taken(entries, self.consts, own, batch), self._pure, inputs
            )
        if any(last_epoch):
            self._tally(terms, taps, batch, last_epoch)
        if phase.grad_map is not None:
            mapped = self._mapped(phase.grad_map, dict(zip(self.moving, gradients, strict=True)), parameters)
            gradients = tuple(mapped[name] for name in self.moving)
        self.optimizer.step(gradients)
        if phase.project is not None:
            with torch.no_grad():
                projected = self._mapped(phase.project, parameters)
                torch._foreach_copy_(self.optimizer.parameters, [projected[name] for name in self.moving])
        return gradients

    def _taken(
        self, entries: Tree, consts: Stacked, own: list[Tensor], batch: Batch, *, keep_graph: bool = False
    ) -> Taken:
        """One step of all members up to their gradients; totals [K], terms [K], taps [K, B, ...]."""
        phase = self.phase

        def one(tree: Tree, own: list[Tensor], batch: Batch) -> tuple[Tensor, Tree, Tree]:
            out = self.net.call(objective, tree, batch, consts.of_one(own), phase)
            return out.total, dict(out.terms), dict(out.taps)

        out = Objective(*torch.vmap(one, in_dims=(0, 0, dims(batch)))(entries, own, batch))
        parameters = [entries[name] for name in self.moving]
        retained = keep_graph or None
        return Taken(
            [out], torch.autograd.grad(out.total.sum(), parameters, materialize_grads=True, retain_graph=retained)
        )

    def _pure(self, *tensors: Tensor) -> Taken:
        """`_taken` from tensors alone: the net's entries, the members' constants, the shared ones, the batch."""
        names, own, given = list(self.tree), len(self.consts.stacked), iter(tensors)
        entries = {name: next(given) for name in names}
        entries |= {name: entries[name].detach().requires_grad_() for name in self.moving}
        leaves = [next(given) for _ in range(own)]
        consts = self.consts.with_tensors(given)
        return self._taken(entries, consts, leaves, Batch(*given))

    def _mapped(self, function: Callable[..., Tree], *trees: Tree) -> Tree:
        """A map of trees and constants, member by member."""
        own = self.consts.first(len(next(iter(trees[0].values()))))

        def one(own: list[Tensor], *trees: Tree) -> Tree:
            return function(*trees, self.consts.of_one(own))

        mapped: Tree = torch.vmap(one)(own, *trees)
        return mapped

    def _tally(
        self, terms: Mapping[str, Tensor], taps: Mapping[str, Tensor], batch: Batch, last_epoch: list[bool]
    ) -> None:
        counted = None if all(last_epoch) else torch.tensor(last_epoch, device=batch.y.device)
        fresh = {name: term.detach() for name, term in terms.items()}
        if counted is not None:
            fresh = {name: torch.where(counted, term, 0.0) for name, term in fresh.items()}
        if not self.terms:
            self.terms = {name: torch.zeros_like(term) for name, term in fresh.items()}
        for name, term in fresh.items():
            self.terms[name][: len(term)] += term
        if not self.phase.collect:
            return
        statistics = self.phase.collect
        if counted is not None:
            mask = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
            batch = batch._replace(mask=mask & counted.unsqueeze(1))

        def added(sums: dict[str, Tree], taps: Tree, batch: Batch) -> dict[str, Tree]:
            return {
                name: statistic.add(sums[name], taps[str(statistic.of)], batch, self.classes)
                for name, statistic in statistics.items()
            }

        tapped = {str(s.of): taps[str(s.of)].detach() for s in statistics.values()}
        in_dims = (0, 0, dims(batch))
        put_rows(self.sums, torch.vmap(added, in_dims=in_dims)(first_rows(self.sums, len(last_epoch)), tapped, batch))

    def _probe(self, terms: Mapping[str, Tensor], parameters: Tree, ends: list[bool]) -> None:
        """Gradient norms of the terms, of the members whose last step it is."""
        norms = gradient_norms(terms, list(parameters.values()), stacked=True)
        for row, over in enumerate(ends):
            if over:
                self.members[row].norms |= {name: float(norm[row]) for name, norm in norms.items()}

    def _settle(self, parts: list[Parts]) -> None:
        """What the phase leaves beside the weights, member by member."""
        named = {name: totals.tolist() for name, totals in self.terms.items()}
        for row, (member, own) in enumerate(zip(self.members, parts, strict=True)):
            member.steps += len(own)
            member.samples += sum(len(part) for part in own)
            means = {name: totals[row] / (len(own) // self.phase.epochs) for name, totals in named.items()}
            member.terms = means or member.terms
            if not self.phase.collect:
                continue
            collected = {
                name: statistic.result({n: value[row] for n, value in self.sums[name].items()})
                for name, statistic in self.phase.collect.items()
            }
            collected = placed(collected, CPU)
            member.collected |= collected
            member.consts = member.consts | collected
