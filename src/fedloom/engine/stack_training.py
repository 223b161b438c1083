"""One training phase of a stack of clients, under `torch.vmap`.

Rows of a stack are its members, the largest first: those who still have batches are always the first rows. What all
members have in common is stacked without a copy, until somebody writes into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.engine.branches import side_by_side
from fedloom.engine.client import CPU, Worker
from fedloom.engine.constants import Stacked, placed
from fedloom.engine.keys import phase_key
from fedloom.engine.members import Member, StackedNet, batch_of, dims, first_rows, is_common, passed, put_rows
from fedloom.engine.optim import Optimizer
from fedloom.engine.pulls import gradient_norms
from fedloom.engine.recorded import Recorder, Taken, layouts
from fedloom.engine.schedule import Run, Schedule
from fedloom.engine.stack_blocks import Blocks, StackedBlock
from fedloom.engine.steps import Pure, differentiated, moves, objective
from fedloom.methods.phases import Batch, Objective, Train


class Training:
    """One training phase of a stack. Rows of `tree` are the members, the largest first."""

    def __init__(
        self,
        worker: Worker,
        recorder: Recorder,
        blocks: Blocks,
        net: StackedNet,
        phase: Train,
        members: list[Member],
        tree: Tree,
    ) -> None:
        self.worker, self.recorder, self.blocks, self.net = worker, recorder, blocks, net
        self.phase, self.members, self.tree = phase, members, dict(tree)
        ctx = members[0].job.ctx
        self.classes, self.size = ctx.task.num_classes, worker.local.batch_size
        self.moving = [name for name in self.net.parameters if moves(name, phase, ctx)]
        self.written = [name for name in tree if name in self.moving or name not in self.net.parameters]
        self.consts = Stacked.of([member.consts for member in members]).on(worker.device)
        self.optimizer = Optimizer(phase.optimizer or worker.local.optimizer, [])
        self.key = (id(self.net), phase_key(phase), self.consts.shape, tuple(self.moving))
        self.terms: dict[str, Tensor] = {}
        self.sums: dict[str, Tree] = {name: {} for name in phase.collect}

    def run(self) -> Tree:
        """The weights after the phase."""
        phase, members, worker = self.phase, self.members, self.worker
        schedule = Schedule(worker, phase, members)
        for now in schedule:
            if phase.refresh and schedule.opens(now):
                passed(worker, self.net, phase.refresh, members, self.tree)
                self.consts = Stacked.of([member.consts for member in members]).on(worker.device)
            self.net.train()
            batch = batch_of(worker, now.samples, [member.draws for member in members[: now.active]])
            outs = self._together(batch, now) or self._one_by_one(batch, now)
            for step, out, own in zip(range(now.first, now.last), outs, self._batches(batch), strict=True):
                self._tally(out, own, schedule.last_epoch(step, now.active))
        self._settle(schedule)
        return self.tree

    def _batches(self, batch: Batch) -> list[Batch]:
        """The batches of a run, one after another."""
        if batch.y.shape[1] <= self.size:
            return [batch]
        given = [torch.split(tensor, self.size, dim=1) for tensor in batch if tensor is not None]
        return [Batch(*parts) for parts in zip(*given, strict=True)]

    # -- steps as one graph --------------------------------------------------------------------------------------
    def _together(self, batch: Batch, now: Run) -> list[Objective] | None:
        """The steps of a run as one graph; None if there is none.

        Steps of few members, and steps that depend on their number, as Adam's do, would make too many graphs.
        """
        optimizer, shared, steps = self.optimizer, self.consts.tensors(), now.last - now.first
        if not (self.net.linear and self.worker.record) or optimizer.spec.name != "sgd":
            return None
        in_all = self.members[0].job.ctx.task.rounds * len(self.members) * now.of
        if now.active < len(self.members) or steps < 2 or in_all < self.blocks.least:
            return None
        self._narrowed(now.active)
        weights = [value[0] if is_common(value) else value for value in self.tree.values()]
        own = [*optimizer.state, *self.consts.stacked]
        common = [*map(is_common, self.tree.values()), *(False for _ in own), *(True for _ in shared), False, False]
        inputs = [*weights, *own, *shared, batch.x, batch.y]
        key = (self.key, self.consts.kinds(), optimizer.key, tuple(common), layouts(inputs))
        made = optimizer.remaking()
        pure = Pure(self.net.call, list(self.tree), self.moving, self.phase, self.consts, made, self.size)
        places = [place for place, name in enumerate(self.tree) if name in self.written]
        block = self.blocks.get(
            key, lambda: StackedBlock(pure, places, len(optimizer.state), common, inputs, native=self.worker.native)
        )
        if block is None:
            return None
        inputs += [self._room(like, last=now.last == now.of) for like in block.rooms]
        if block.compiled:
            taken = block(*inputs)
        else:
            taken = self.recorder.take(key, self.phase, lambda: block(*inputs), block, inputs, steps=steps)
        left = iter(taken.tensors)
        self.tree |= {name: next(left) for name in self.written}
        optimizer.advance(steps, list(left))
        return taken.objectives

    def _room(self, like: Tensor, *, last: bool) -> Tensor:
        """Memory for weights: of the last steps of all, where the clients' payloads are wanted."""
        wanted = self.worker.room if last and self.phase is self.members[0].phases[-1] else None
        return wanted.empty_like(like) if wanted else torch.empty_like(like, device=self.worker.device)

    # -- steps one by one ----------------------------------------------------------------------------------------
    def _one_by_one(self, batch: Batch, now: Run) -> list[Objective]:
        """The steps of a run."""
        for name in self.written:
            self._own(name)
        batches = (Batch(one.x.contiguous(), *one[1:]) for one in self._batches(batch))
        return [self._step(one, self._narrowed(now.active), now.probed) for one in batches]

    def _own(self, name: str) -> Tensor:
        """An entry of which every member has its own."""
        if is_common(self.tree[name]):
            self.tree[name] = self.tree[name].clone(memory_format=torch.contiguous_format)
        return self.tree[name]

    def _narrowed(self, active: int) -> Tree:
        """The parameters of the first `active` members that this phase moves, as leaves over the same memory."""
        parameters = {name: self.tree[name][:active].detach().requires_grad_() for name in self.moving}
        self.optimizer.narrow(list(parameters.values()))
        return parameters

    def _relaid(self, gradients: Sequence[Tensor]) -> None:
        """The parameters in the memory order of their gradients, in which updates are several times faster."""
        for name, gradient in zip(self.moving, gradients, strict=True):
            if gradient.stride() != self.tree[name].stride() and gradient.shape == self.tree[name].shape:
                self.tree[name] = torch.empty_like(gradient).copy_(self.tree[name])

    def _step(self, batch: Batch, parameters: Tree, probed: Sequence[bool]) -> Objective:
        """One step of all members that still have batches."""
        phase, active, first = self.phase, len(batch.y), not self.optimizer.steps
        entries = {name: value[:active] for name, value in self.tree.items()} | parameters
        own = self.consts.first(active)
        if probed:
            (out,), gradients = self._differentiated(entries, self.consts, own, batch, keep_graph=True)
            self._probe(out.terms, list(parameters.values()), probed)
        else:
            inputs = [*entries.values(), *own, *self.consts.tensors(), *(t for t in batch if t is not None)]
            key = (self.key, self.consts.kinds())
            (out,), gradients = self.recorder.take(
                key,
                phase,
                lambda: self._differentiated(entries, self.consts, own, batch),
                self._pure,
                inputs,
                others=[self._branched],
            )
        if phase.grad_map is not None:
            mapped = self._mapped(phase.grad_map, dict(zip(self.moving, gradients, strict=True)), parameters)
            gradients = tuple(mapped[name] for name in self.moving)
        self.optimizer.step(gradients)
        if phase.project is not None:
            with torch.no_grad():
                projected = self._mapped(phase.project, parameters)
                torch._foreach_copy_(self.optimizer.parameters, [projected[name] for name in self.moving])
        if first:
            self._relaid(gradients)
        return out

    def _differentiated(
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

    def _apart(self, entries: Tree, consts: Stacked, own: list[Tensor], batch: Batch) -> Taken:
        """`_differentiated`, every member by itself: on a GPU side by side, each on a stream of its own."""

        def one(row: int) -> tuple[Objective, Sequence[Tensor]]:
            tree = {name: value[row].detach() for name, value in entries.items()}
            tree |= {name: tree[name].requires_grad_() for name in self.moving}
            part = Batch(*(None if tensor is None else tensor[row] for tensor in batch))  # type: ignore[arg-type]
            known = consts.of_one([tensor[row] for tensor in own])
            taken: tuple[Objective, Sequence[Tensor]] = self.net.call(
                differentiated, tree, part, known, self.phase, [tree[name] for name in self.moving]
            )
            return taken

        outs, gradients = zip(*side_by_side(one, len(batch.y), self.worker.device), strict=True)
        objectives = Objective(
            torch.stack([out.total.detach() for out in outs]),
            {name: torch.stack([out.terms[name].detach() for out in outs]) for name in outs[0].terms},
            {name: torch.stack([out.taps[name].detach() for out in outs]) for name in outs[0].taps},
        )
        return Taken([objectives], [torch.stack(gradient) for gradient in zip(*gradients, strict=True)])

    def _pure(self, *tensors: Tensor) -> Taken:
        """`_differentiated` from tensors alone: the net's entries, constants of members and of all, the batch."""
        return self._differentiated(*self._from(tensors))

    def _branched(self, *tensors: Tensor) -> Taken:
        """`_apart` from tensors alone."""
        return self._apart(*self._from(tensors))

    def _from(self, tensors: Sequence[Tensor]) -> tuple[Tree, Stacked, list[Tensor], Batch]:
        names, own, given = list(self.tree), len(self.consts.stacked), iter(tensors)
        entries = {name: next(given) for name in names}
        entries |= {name: entries[name].detach().requires_grad_() for name in self.moving}
        leaves = [next(given) for _ in range(own)]
        consts = self.consts.with_tensors(given)
        return entries, consts, leaves, Batch(*given)

    def _mapped(self, function: Callable[..., Tree], *trees: Tree) -> Tree:
        """A map of trees and constants, member by member."""
        own = self.consts.first(len(next(iter(trees[0].values()))))

        def one(own: list[Tensor], *trees: Tree) -> Tree:
            return function(*trees, self.consts.of_one(own))

        mapped: Tree = torch.vmap(one)(own, *trees)
        return mapped

    def _tally(self, out: Objective, batch: Batch, last_epoch: list[bool]) -> None:
        """What is kept of a step, of the members in their last epoch."""
        if not any(last_epoch):
            return
        counted = None if all(last_epoch) else torch.tensor(last_epoch, device=batch.y.device)
        fresh = {name: term.detach() for name, term in out.terms.items()}
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

        tapped = {str(s.of): out.taps[str(s.of)].detach() for s in statistics.values()}
        in_dims = (0, 0, dims(batch))
        put_rows(self.sums, torch.vmap(added, in_dims=in_dims)(first_rows(self.sums, len(last_epoch)), tapped, batch))

    def _probe(self, terms: Mapping[str, Tensor], parameters: Sequence[Tensor], probed: Sequence[bool]) -> None:
        """Gradient norms of the terms, of the members whose last step it is."""
        norms = gradient_norms(terms, parameters, stacked=True)
        for row, wanted in enumerate(probed):
            if wanted:
                self.members[row].norms |= {name: float(norm[row]) for name, norm in norms.items()}

    def _settle(self, schedule: Schedule) -> None:
        """What the phase leaves beside the weights, member by member."""
        named = {name: totals.tolist() for name, totals in self.terms.items()}
        for row, (member, steps) in enumerate(zip(self.members, schedule.steps, strict=True)):
            member.steps += steps
            member.samples += schedule.samples[row]
            means = {name: totals[row] / (steps // self.phase.epochs) for name, totals in named.items()}
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
