"""One training phase of a stack of clients, under `torch.vmap`.

Rows of a stack are clients, the largest first, so that clients with remaining batches are the first rows. Entries that
all clients have in common are expanded without a copy until a step writes into them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.engine.client import CPU, Worker
from fedloom.engine.jobs import Client
from fedloom.engine.keys import to_device
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.round_report import gradient_norms
from fedloom.engine.stacked.members import (
    Stacked,
    StackedNet,
    batch_of,
    collect_statistics,
    dims,
    first_rows,
    is_common,
    put_rows,
    row_of,
)
from fedloom.engine.steps import add_statistics, objective, tap_of, trainable_names, update
from fedloom.methods.contract.phases import Batch, Objective, Train


@dataclass(frozen=True, slots=True)
class Step:
    """Step `number` of the first `active` clients.

    samples: ids [B_k] for each client. last_epoch: whether the step is in the client's last epoch. measured: whether
    the client's loss terms are measured in this step; empty if no client's are.
    """

    number: int
    active: int
    samples: list[Tensor]
    last_epoch: list[bool]
    measured: Sequence[bool]


@dataclass(frozen=True, slots=True)
class _BatchOrder:
    """A client's samples in the order of its batches, `batches` an epoch; the last batch of an epoch may be short."""

    samples: Tensor
    epoch: int
    batches: int
    size: int

    def __len__(self) -> int:
        """Number of steps over all epochs."""
        return self.samples.shape[0] // self.epoch * self.batches

    def of(self, step: int) -> Tensor:
        """Return the samples of a step."""
        epoch, batch = divmod(step, self.batches)
        start = epoch * self.epoch + batch * self.size
        return self.samples[start : min(start + self.size, (epoch + 1) * self.epoch)]


class Schedule:
    """The steps of all clients, the largest client first, so that clients with remaining batches are the first rows."""

    def __init__(self, worker: Worker, phase: Train, clients: Sequence[Client]) -> None:
        self._clients, self._orders = clients, []
        for client in clients:
            job = worker.sampler.job_of(phase, client.job)
            orders = [worker.sampler.epoch_order(job, client.draws) for _ in range(phase.epochs)]
            epoch, batches = orders[0].shape[0], worker.sampler.batches_per_epoch(job)
            self._orders.append(_BatchOrder(torch.cat(orders), epoch, batches, worker.local_training.batch_size))
        self.steps = [len(order) for order in self._orders]
        self.samples = [order.samples.shape[0] for order in self._orders]

    def __iter__(self) -> Iterator[Step]:
        for number in range(self.steps[0]):
            active = [order for order, steps in zip(self._orders, self.steps, strict=True) if steps > number]
            last_epoch = [number >= len(order) - order.batches for order in active]
            samples = [order.of(number) for order in active]
            yield Step(number, len(active), samples, last_epoch, self._measured(number, len(active)))

    def opens_epoch(self, step: Step) -> bool:
        """Whether an epoch begins with this step, for clients with equally many batches."""
        return step.number % self._orders[0].batches == 0

    def _measured(self, number: int, active: int) -> Sequence[bool]:
        """Whether terms are measured, for each client; never in the first step, whose proximal terms may be zero."""
        pairs = zip(self._clients[:active], self.steps, strict=False)
        ends = [client.job.measured and number == steps - 1 for client, steps in pairs]
        return ends if any(ends) and number else ()


class StackedTraining:
    """One training phase of a stack."""

    def __init__(self, worker: Worker, net: StackedNet, phase: Train, clients: list[Client], tree: Tree) -> None:
        self.worker, self.net, self.phase, self.clients, self.tree = worker, net, phase, clients, dict(tree)
        ctx = clients[0].job.ctx
        self.classes, self.roles = ctx.task.num_classes, ctx.task.roles
        self.trainable = trainable_names(self.net.parameters, phase, ctx)
        for name in tree:
            if name in self.trainable or name not in {*self.net.parameters, *ctx.task.frozen}:
                self._with_own_memory(name)
        specs = [phase.spec_of(name, worker.local_training.optimizer) for name in self.trainable]
        self.optimizer = Optimizer(specs, [self.tree[name] for name in self.trainable], ctx.round)
        self.consts = self._constants()
        self.terms: dict[str, Tensor] = {}
        self.sums: dict[str, Tree] = {name: {} for name in phase.collect}

    def run(self) -> Tree:
        """Run all steps of the phase and return the weights."""
        phase, clients, worker = self.phase, self.clients, self.worker
        schedule = Schedule(worker, phase, clients)
        for step in schedule:
            if phase.refresh and schedule.opens_epoch(step):
                collect_statistics(worker, self.net, phase.refresh, phase, clients, self.tree)
                self.consts = self._constants()
            worker.set_modes(self.net.module, phase, self.roles)
            batch = batch_of(worker, step.samples, [client.draws for client in clients[: step.active]])
            out = self._step(batch, self._narrowed(step.active), step.measured)
            self._tally(out, batch, step.last_epoch)
        self._settle(schedule)
        return self.tree

    def _constants(self) -> Stacked:
        return Stacked.of([client.consts for client in self.clients]).on(self.worker.device)

    def _with_own_memory(self, name: str) -> Tensor:
        """Return an entry with memory of its own for every client, copying it if they share it."""
        if is_common(self.tree[name]):
            self.tree[name] = self.tree[name].clone(memory_format=torch.contiguous_format)
        return self.tree[name]

    def _narrowed(self, active: int) -> Tree:
        """Return the first `active` clients' trainable parameters, as leaves that share memory with the tree."""
        parameters = {name: self.tree[name][:active].detach().requires_grad_() for name in self.trainable}
        self.optimizer.narrow(list(parameters.values()))
        return parameters

    def _relaid(self, gradients: Sequence[Tensor]) -> None:
        """Copy parameters to the memory order of their gradients, in which updates are several times faster."""
        for name, gradient in zip(self.trainable, gradients, strict=True):
            if gradient.stride() != self.tree[name].stride() and gradient.shape == self.tree[name].shape:
                self.tree[name] = torch.empty_like(gradient).copy_(self.tree[name])

    def _step(self, batch: Batch, parameters: Tree, measured: Sequence[bool]) -> Objective:
        """Take one step of the clients that have batches left."""
        active, first = len(batch.y), not self.optimizer.steps
        entries = {name: value[:active] for name, value in self.tree.items()} | parameters
        private = self.consts.first(active)
        out, gradients = self._loss_and_gradients(entries, private, batch, keep_graph=bool(measured))
        if measured:
            self._measure(out.terms, list(parameters.values()), measured)
        if self.phase.ascent is not None:
            gradients = self._gradients_at_moved(entries, parameters, gradients, batch)
        gradients = update(self._stacked_phase(), gradients, parameters, {}, self.optimizer)
        if first:
            self._relaid(gradients)
        return out

    def _loss_and_gradients(
        self, entries: Tree, private: list[Tensor], batch: Batch, *, keep_graph: bool
    ) -> tuple[Objective, Sequence[Tensor]]:
        """Compute the objective of one step, and its gradients as those of the sum over clients.

        Totals and terms are [K], taps [K, B, ...].
        """
        phase, consts = self.phase, self.consts

        def of_client(tree: Tree, private: list[Tensor], batch: Batch) -> tuple[Tensor, Tree, Tree]:
            out = self.net.call(objective, tree, batch, consts.of_one(private), phase)
            return out.total, dict(out.terms), dict(out.taps)

        out = Objective(*torch.vmap(of_client, in_dims=(0, 0, dims(batch)))(entries, private, batch))
        parameters, retained = [entries[name] for name in self.trainable], keep_graph or None
        gradients = torch.autograd.grad(out.total.sum(), parameters, materialize_grads=True, retain_graph=retained)
        return out, gradients

    def _gradients_at_moved(
        self, entries: Tree, parameters: Tree, gradients: Sequence[Tensor], batch: Batch
    ) -> Sequence[Tensor]:
        """Compute the gradients at the parameters that the phase's ascent moves to, of all clients.

        The second pass gets copies of the buffers, so that batch norm counts the batch once.
        """
        ascent, named = self.phase.ascent, dict(zip(parameters, gradients, strict=True))
        assert ascent is not None
        with torch.no_grad():
            moves = self._mapped(ascent, named, parameters)
        leaves = {name: value.detach() + moves[name] if name in moves else value for name, value in parameters.items()}
        constant = {*self.net.parameters, *self.clients[0].job.ctx.task.frozen}
        buffers = {name: value.clone() for name, value in entries.items() if name not in constant}
        moved_entries = entries | buffers | {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
        private = self.consts.first(len(batch.y))
        return self._loss_and_gradients(moved_entries, private, batch, keep_graph=False)[1]

    def _stacked_phase(self) -> Train:
        """The phase with its maps of trees over all clients."""
        grad_map, project = self.phase.grad_map, self.phase.project
        return replace(
            self.phase,
            grad_map=grad_map and (lambda gradients, trainable, _: self._mapped(grad_map, gradients, trainable)),
            project=project and (lambda trainable, _: self._mapped(project, trainable)),
        )

    def _mapped(self, function: Callable[..., Tree], *trees: Tree) -> Tree:
        """Map trees and constants of each client to a tree."""
        private = self.consts.first(len(next(iter(trees[0].values()))))

        def of_client(private: list[Tensor], *trees: Tree) -> Tree:
            return function(*trees, self.consts.of_one(private))

        mapped: Tree = torch.vmap(of_client)(private, *trees)
        return mapped

    def _tally(self, out: Objective, batch: Batch, last_epoch: list[bool]) -> None:
        """Add a step's statistics to those of clients in their last epoch, or of all clients if all epochs count."""
        throughout = bool(self.phase.collect) and self.phase.throughout
        if not throughout and not any(last_epoch):
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
        if counted is not None and not throughout:
            mask = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
            batch = batch._replace(mask=mask & counted.unsqueeze(1))

        def added(sums: dict[str, Tree], taps: Tree, batch: Batch) -> dict[str, Tree]:
            return add_statistics(statistics, sums, tap_of(taps), batch, self.classes)

        tapped = {str(s.of): out.taps[str(s.of)].detach() for s in statistics.values()}
        in_dims = (0, 0, dims(batch))
        put_rows(self.sums, torch.vmap(added, in_dims=in_dims)(first_rows(self.sums, len(last_epoch)), tapped, batch))

    def _measure(self, terms: Mapping[str, Tensor], parameters: Sequence[Tensor], measured: Sequence[bool]) -> None:
        """Measure the gradient norms of loss terms for the clients whose last step this is."""
        norms = gradient_norms(terms, parameters, stacked=True)
        for row, is_measured in enumerate(measured):
            if is_measured:
                self.clients[row].norms |= {name: float(norm[row]) for name, norm in norms.items()}

    def _settle(self, schedule: Schedule) -> None:
        """Write the phase's statistics and measured terms to each client."""
        named = {name: totals.tolist() for name, totals in self.terms.items()}
        for row, (client, steps) in enumerate(zip(self.clients, schedule.steps, strict=True)):
            means = {name: totals[row] / (steps // self.phase.epochs) for name, totals in named.items()}
            collected = {
                name: statistic.result(row_of(self.sums[name], row)) for name, statistic in self.phase.collect.items()
            }
            client.trained(means, to_device(collected, CPU), steps, schedule.samples[row])
