"""Several clients' rounds at once: their weights stacked, their steps taken together under `torch.vmap`.

The same draws and the same losses as one after another (`engine/client.py`); only the order of sums inside a
product may differ. Clients are sorted by size, so that those who still have batches are always the first rows of the
stack; short batches are padded, and padded rows do not count (`Batch.mask`, `nets/masked.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from fedloom.core.errors import ClientError
from fedloom.core.trees import Tree
from fedloom.engine.client import CPU, PASS_BATCH, Done, Draws, Job, Worker, moves, objective
from fedloom.engine.constants import Stacked, placed, shape_of
from fedloom.engine.keys import phase_key
from fedloom.engine.optim import Optimizer
from fedloom.engine.pulls import gradient_norms
from fedloom.engine.recorded import LONGEST_STACKED_SECONDS, Recorder, Taken
from fedloom.methods.method import Finding, Start, Work
from fedloom.methods.phases import Batch, Collect, Consts, Objective, Phase, Statistic, Train
from fedloom.nets.functional import Functional
from fedloom.nets.masked import masked_copy
from fedloom.nets.net import Net

Parts: TypeAlias = list[Tensor]


def obstacle(worker: Worker) -> str | None:
    """Why clients of this worker cannot be stacked; None if nothing is known against it."""
    if worker.method.spec.alone is not None:
        return f"{worker.method.name()}: {worker.method.spec.alone}"
    modules = [module for live in worker.lives for module in live.net.modules()]
    if any(isinstance(module, torch.nn.RNNBase) for module in modules):
        return "torch.vmap has no rule for recurrent layers"
    return "dropout draws for one client at a time" if worker.drops_out else None


@dataclass(slots=True)
class Member:
    """One client of a stack: its job, what `begin` and `phases` gave, and what it has so far."""

    job: Job
    start: Start
    phases: list[Phase]
    draws: Draws
    consts: Consts
    collected: dict[str, Any] = field(default_factory=dict)
    terms: dict[str, float] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    steps: int = 0
    samples: int = 0


class Stacks:
    """Runs clients on a worker's nets, up to `width` at once; those that fit nobody else run alone."""

    def __init__(self, worker: Worker, width: int) -> None:
        self.worker, self.width = worker, width
        self.recorder = Recorder(worker.recorder.after_seconds, LONGEST_STACKED_SECONDS)
        self.notes: list[Finding] = []
        self._nets = [_StackedNet(live.net) for live in worker.lives]

    def run(self, jobs: Sequence[Job]) -> list[Done]:
        """One `Done` per job, in any order. Raises `ClientError`."""
        done: list[Done] = []
        alike: dict[Hashable, list[Member]] = {}
        for job in jobs:
            member = self._begun(job)
            key = self._key(member)
            alike.setdefault(key, []).append(member)
        for key, members in alike.items():
            members.sort(key=lambda member: -len(member.job.indices))
            while members:
                chunk, members = members[: self.width], members[self.width :]
                if key is None or len(chunk) == 1:
                    done += [self.worker.run(member.job) for member in chunk]
                    continue
                try:
                    done += self._run(chunk)
                except ClientError as error:
                    if not isinstance(error.__cause__, torch.OutOfMemoryError):
                        raise
                    self._narrow(len(chunk))
                    members = [self._begun(member.job) for member in chunk] + members
        return done

    def _narrow(self, clients: int) -> None:
        """Memory does not suffice for a stack of so many: half as wide from now on."""
        self.width = clients // 2
        message = f"out of memory with {clients} clients in a stack; it goes on with {self.width}"
        self.notes.append(Finding("engine.smaller_stacks", message, float(self.width)))
        torch.cuda.empty_cache()

    def _begun(self, job: Job) -> Member:
        method, ctx = self.worker.method, job.ctx
        try:
            start = method.begin(job.payload, job.state, ctx)
            return Member(job, start, method.phases(start, ctx), self.worker.draws(job), dict(start.consts))
        except Exception as error:
            raise ClientError(ctx.client, ctx.round, "begin", error) from error

    def _key(self, member: Member) -> Hashable | None:
        """What clients must have in common to share a stack; None for one that must run alone."""
        job = member.job
        batches = self.worker.batches(job)
        if not batches and any(isinstance(phase, Train) for phase in member.phases):
            return None
        refreshed = any(isinstance(phase, Train) and phase.refresh for phase in member.phases)
        phases = tuple(phase_key(phase) for phase in member.phases)
        return job.ctx.task.group, job.probe, phases, shape_of(member.consts), batches if refreshed else None

    def _run(self, members: list[Member]) -> list[Done]:
        started, ctx = time.perf_counter(), members[0].job.ctx
        stage = "begin"
        try:
            tree = _stacked_trees([member.start.tree for member in members], self.worker.device)
            for number, phase in enumerate(members[0].phases):
                stage = f"phase {number}"
                if isinstance(phase, Collect):
                    self._passed(phase.statistics, members, tree, keep=True)
                else:
                    tree = _Training(self, phase, members, tree).run()
        except Exception as error:
            others = ", ".join(str(member.job.ctx.client) for member in members)
            error.add_note(f"clients {others} were trained together")
            raise ClientError(ctx.client, ctx.round, stage, error) from error
        tree = {name: value.to(CPU) for name, value in tree.items()}
        taken = (time.perf_counter() - started) / max(1, sum(member.samples for member in members))
        return [self._ended(member, row, tree, taken * member.samples) for row, member in enumerate(members)]

    def _ended(self, member: Member, row: int, tree: Tree, seconds: float) -> Done:
        job, ctx = member.job, member.job.ctx
        try:
            work = Work({name: value[row] for name, value in tree.items()}, member.collected, member.steps)
            payload, state = self.worker.method.end(work, job.state, ctx)
        except Exception as error:
            raise ClientError(ctx.client, ctx.round, "end", error) from error
        return Done(ctx.client, payload, state, member.terms, member.steps, member.samples, seconds, member.norms)

    def net(self, members: Sequence[Member]) -> _StackedNet:
        return self._nets[members[0].job.ctx.task.group]

    @torch.no_grad()
    def _passed(
        self, statistics: Mapping[str, Statistic], members: list[Member], tree: Tree, *, keep: bool = False
    ) -> None:
        """A statistics pass of all members. Results go to their constants and, with `keep`, to what they collect."""
        net, classes = self.net(members), members[0].job.ctx.task.num_classes
        consts = Stacked.of([member.consts for member in members]).on(self.worker.device)
        parts = [list(torch.split(member.job.indices, PASS_BATCH)) for member in members]
        sums: dict[str, Tree] = {name: {} for name in statistics}

        def added(sums: dict[str, Tree], own: list[Tensor], tree: Tree, batch: Batch) -> dict[str, Tree]:
            new = {}
            for name, statistic in statistics.items():
                assert callable(statistic.of), f"statistic {name} of a pass names a tap; it needs a function"
                values = net.call(statistic.of, tree, batch, consts.of_one(own))
                new[name] = statistic.add(sums[name], values, batch, classes)
            return new

        net.eval()
        for step in range(max(len(own) for own in parts)):
            active = sum(len(own) > step for own in parts)
            batch = self.batch([own[step] for own in parts[:active]])
            fresh = torch.vmap(added, in_dims=(0, 0, 0, _dims(batch)))(
                _first(sums, active), consts.first(active), {n: v[:active] for n, v in tree.items()}, batch
            )
            _put(sums, fresh)
        for row, member in enumerate(members):
            results = {
                name: statistic.result({n: value[row] for n, value in sums[name].items()})
                for name, statistic in statistics.items()
            }
            results = placed(results, CPU)
            member.consts = member.consts | results
            if keep:
                member.collected |= results

    def batch(self, parts: Parts, draws: Sequence[Draws] | None = None) -> Batch:
        """One batch of every client, [K, B, ...], padded to the longest with rows that do not count."""
        data, longest = self.worker.data, max(len(part) for part in parts)
        short = any(len(part) < longest for part in parts)
        padded = [_padded(part, longest) for part in parts] if short else parts
        rows = torch.stack(padded)
        if draws is None or draws[0].augment is None:
            x = data.gather(rows.flatten())
            x = x.view(*rows.shape, *x.shape[1:])
        else:
            own = [self.worker.gathered(part, drawn) for part, drawn in zip(parts, draws, strict=True)]
            x = torch.stack([_padded(images, longest) for images in own])
        mask = None
        if short:
            lengths = torch.tensor([len(part) for part in parts])
            mask = (torch.arange(longest) < lengths.unsqueeze(1)).to(self.worker.device)
        return Batch(x, data.y[rows], mask)


class _Training:
    """One training phase of a stack. Rows of `tree` are the members, the largest first."""

    def __init__(self, stacks: Stacks, phase: Train, members: list[Member], tree: Tree) -> None:
        self.stacks, self.phase, self.members, self.tree = stacks, phase, members, tree
        self.net = stacks.net(members)
        ctx = members[0].job.ctx
        self.classes = ctx.task.num_classes
        self.moving = [name for name in self.net.parameters if moves(name, phase, ctx)]
        self.consts = Stacked.of([member.consts for member in members]).on(stacks.worker.device)
        self.optimizer = Optimizer(phase.optimizer or stacks.worker.local.optimizer, [])
        self.key = (id(self.net), phase_key(phase), self.consts.shape, tuple(self.moving))
        self.terms: dict[str, Tensor] = {}
        self.sums: dict[str, Tree] = {name: {} for name in phase.collect}

    def run(self) -> Tree:
        """The weights after the phase."""
        phase, members, worker = self.phase, self.members, self.stacks.worker
        parts = [
            [part for _ in range(phase.epochs) for part in worker.shuffled(member.job, member.draws)]
            for member in members
        ]
        steps = [len(own) for own in parts]
        parameters: Tree = {}
        for step in range(steps[0]):
            active = sum(count > step for count in steps)
            if phase.refresh and step % (steps[0] // phase.epochs) == 0:
                self.stacks._passed(phase.refresh, members, self.tree)
                self.consts = Stacked.of([member.consts for member in members]).on(worker.device)
            if len(parameters) == 0 or active < len(next(iter(parameters.values()))):
                parameters = self._narrowed(active)
            self.net.train()
            draws = [member.draws for member in members[:active]]
            batch = self.stacks.batch([own[step] for own in parts[:active]], draws)
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
            (_, terms, taps), gradients = self._taken(entries, self.consts, own, batch, keep_graph=True)
            self._probe(terms, parameters, ends)
        else:
            inputs = [*entries.values(), *own, *self.consts.tensors(), *(t for t in batch if t is not None)]
            key = (self.key, self.consts.numbers(), tuple(tensor.shape for tensor in batch if tensor is not None))
            (_, terms, taps), gradients = self.stacks.recorder.take(
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

        out = Objective(*torch.vmap(one, in_dims=(0, 0, _dims(batch)))(entries, own, batch))
        parameters = [entries[name] for name in self.moving]
        retained = keep_graph or None
        return Taken(
            out, torch.autograd.grad(out.total.sum(), parameters, materialize_grads=True, retain_graph=retained)
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
        in_dims = (0, 0, _dims(batch))
        _put(self.sums, torch.vmap(added, in_dims=in_dims)(_first(self.sums, len(last_epoch)), tapped, batch))

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


class _StackedNet:
    """A net without weights of its own, which looks at a batch's mask."""

    def __init__(self, net: Net) -> None:
        copied, self._rows = masked_copy(net)
        self.parameters = [name for name, _ in net.named_parameters()]
        self._net = Functional(copied)

    def train(self) -> None:
        self._net.train()

    def eval(self) -> None:
        self._net.eval()

    def call(self, function: Callable[..., Any], tree: Tree, batch: Batch, *arguments: Any) -> Any:
        """`function(net, batch, *arguments)`, the net having the weights `tree`."""
        self._rows.mask = batch.mask
        try:
            return self._net.call(function, tree, batch, *arguments)
        finally:
            self._rows.mask = None


def _stacked_trees(trees: Sequence[Tree], device: torch.device) -> Tree:
    first, count = trees[0], len(trees)
    stacked = {}
    for name, value in first.items():
        common = all(tree[name].data_ptr() == value.data_ptr() for tree in trees)
        stacked[name] = (
            value.to(device).expand(count, *value.shape).clone(memory_format=torch.contiguous_format)
            if common
            else torch.stack([tree[name] for tree in trees]).to(device)
        )
    return stacked


def _padded(rows: Tensor, length: int) -> Tensor:
    """rows [B, ...] with repetitions of the first one up to `length`."""
    missing = length - len(rows)
    return torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])]) if missing else rows


def _dims(batch: Batch) -> Any:
    return Batch(0, 0, None if batch.mask is None else 0)  # type: ignore[arg-type]


def _first(sums: dict[str, Tree], clients: int) -> dict[str, Tree]:
    return {name: {n: value[:clients] for n, value in tree.items()} for name, tree in sums.items()}


def _put(sums: dict[str, Tree], fresh: dict[str, Tree]) -> None:
    """`fresh` into the first rows of `sums`; the first time, it comes with all rows."""
    for name, tree in fresh.items():
        for n, value in tree.items():
            if n in sums[name]:
                sums[name][n][: len(value)] = value
            else:
                sums[name][n] = value
