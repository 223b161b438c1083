"""One training phase of a stack of clients, under `torch.vmap`.

Rows of a stack are clients, the largest first, so that clients with remaining batches are the first rows. Entries that
all clients have in common are expanded without a copy until a step writes into them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

import fedloom.engine.stacked.members as members
from fedloom.core.trees import Tree
from fedloom.engine.client import CPU, Worker
from fedloom.engine.jobs import Client
from fedloom.engine.keys import is_common, to_device
from fedloom.engine.optimizer import Optimizer
from fedloom.engine.round_report import gradient_norms
from fedloom.engine.steps import add_statistics, objective, tap_of, trainable_names, update
from fedloom.methods.contract.phases import Batch, Objective, Train

FastStacks: TypeAlias = Any  # `StackGraphs` of `engine/fast`, which takes steps of stacks faster, with the same numbers


class StackedTraining:
    """One training phase of a stack. `fast` takes its steps faster; None takes all of them in Python."""

    def __init__(
        self,
        worker: Worker,
        net: members.StackedNet,
        phase: Train,
        clients: list[Client],
        tree: Tree,
        fast: FastStacks | None = None,
    ) -> None:
        self.worker, self.net, self.phase, self.clients, self.tree = worker, net, phase, clients, dict(tree)
        ctx, self.fast = clients[0].job.ctx, fast
        self.classes, self.roles = ctx.task.num_classes, ctx.task.roles
        self.trainable = trainable_names(self.net.parameters, phase, ctx)
        self.buffers = [name for name in tree if name not in {*self.net.parameters, *ctx.task.frozen}]
        for name in (*self.trainable, *self.buffers):
            if is_common(tree[name]):
                self.tree[name] = tree[name].clone(memory_format=torch.contiguous_format)
        specs = [phase.spec_of(name, worker.local_training.optimizer) for name in self.trainable]
        self.optimizer = Optimizer(specs, [self.tree[name] for name in self.trainable], ctx.round)
        self.consts = members.Stacked.of(clients, worker.device)
        self.terms: dict[str, Tensor] = {}
        self.sums: dict[str, Tree] = {name: {} for name in phase.collect}

    def run(self) -> Tree:
        phase, clients, worker = self.phase, self.clients, self.worker
        self.orders = [self._orders(client) for client in clients]
        size, tree = worker.local_training.batch_size, self.tree
        fast: Any = None
        batches = [[batch for order in orders for batch in torch.split(order, size)] for orders in self.orders]
        lengths = [len(parts) for parts in batches]
        ends = [length - 1 if client.job.measured else -1 for client, length in zip(clients, lengths, strict=True)]
        for number in range(lengths[0]):
            # equally many batches for all, if refreshed
            refreshed = bool(phase.refresh) and number % (lengths[0] // phase.epochs) == 0
            if refreshed:
                members.collect_statistics(worker, self.net, phase.refresh, phase, clients, self.tree)
                self.consts = members.Stacked.of(clients, worker.device)
            if refreshed or not number:
                worker.set_modes(self.net.module, phase, self.roles)
                fast = None if self.fast is None else self.fast.steps_of(self)
            active = sum(number < length for length in lengths)
            last_epoch = [number >= length - length // phase.epochs for length in lengths[:active]]
            # never in the first step, whose proximal terms may be zero
            measured = [end == number for end in ends[:active]] if number and number in ends else []
            taken = fast.step(number) if fast is not None and not measured else None
            result: tuple[Mapping[str, Tensor], Batch] | None = taken
            if result is None:
                draws = [client.draws for client in clients[:active]]
                batch = members.batch_of(worker, [parts[number] for parts in batches[:active]], draws)
                out = self.step(batch, self.narrowed(active), measured)
                if any(last_epoch):
                    counted = None if all(last_epoch) else torch.tensor(last_epoch, device=batch.y.device)
                    self.add_terms(out, counted)
                result = out.taps, batch
            self._collect(*result, last_epoch)
        self._settle(batches)
        if self.tree is not tree:  # fast steps will train others in their memory
            written = {*self.trainable, *self.buffers}
            return {name: self.tree[name].clone() if name in written else value for name, value in tree.items()}
        return self.tree

    def _orders(self, client: Client) -> list[Tensor]:
        sampler = self.worker.sampler
        job = sampler.job_of(self.phase, client.job)
        return [sampler.epoch_order(job, client.draws) for _ in range(self.phase.epochs)]

    def trial(self) -> tuple[Objective, Sequence[Tensor]]:
        """Return the objective and the gradients of a first step, and change nothing."""
        size = self.worker.local_training.batch_size
        batch = members.batch_of(self.worker, [orders[0][:size] for orders in self.orders])
        entries = self.tree | {name: self.tree[name].clone() for name in self.buffers}
        entries |= {name: self.tree[name].detach().requires_grad_() for name in self.trainable}
        return self._loss_and_gradients(entries, self.consts.stacked, batch, keep_graph=False)

    def narrowed(self, active: int) -> Tree:
        """Return the first `active` clients' trainable parameters, as leaves that share memory with the tree."""
        parameters = {name: self.tree[name][:active].detach().requires_grad_() for name in self.trainable}
        self.optimizer.narrow(list(parameters.values()))
        return parameters

    def _relaid(self, gradients: Sequence[Tensor]) -> None:
        """Copy parameters to the memory order of their gradients, in which updates are several times faster."""
        for name, gradient in zip(self.trainable, gradients, strict=True):
            if gradient.stride() != self.tree[name].stride() and gradient.shape == self.tree[name].shape:
                self.tree[name] = torch.empty_like(gradient).copy_(self.tree[name])

    def step(self, batch: Batch, parameters: Tree, measured: Sequence[bool]) -> Objective:
        """Take one step of the clients with batches left, `parameters` as leaves; keep norms of those `measured`."""
        active, first = len(batch.y), not self.optimizer.steps
        entries = {name: value[:active] for name, value in self.tree.items()} | parameters
        private = self.consts.first(active)
        out, gradients = self._loss_and_gradients(entries, private, batch, keep_graph=bool(measured))
        if measured:
            norms = gradient_norms(out.terms, list(parameters.values()), stacked=True)
            for row in (row for row, is_measured in enumerate(measured) if is_measured):
                self.clients[row].norms |= {name: float(norm[row]) for name, norm in norms.items()}
        if self.phase.ascent is not None:
            gradients = self._gradients_at_moved(entries, parameters, gradients, batch)
        gradients = update(self._stacked_phase(), gradients, parameters, {}, self.optimizer)
        if first:  # only the gradients tell the order in which vmap computes
            self._relaid(gradients)
        return out

    def _loss_and_gradients(
        self, entries: Tree, private: list[Tensor], batch: Batch, *, keep_graph: bool
    ) -> tuple[Objective, Sequence[Tensor]]:
        """The objective of one step, with totals and terms [K] and taps [K, B, ...], and its gradients."""
        phase, consts = self.phase, self.consts

        def of_client(tree: Tree, private: list[Tensor], batch: Batch) -> tuple[Tensor, Tree, Tree]:
            out = self.net.call(objective, tree, batch, consts.of_one(private), phase)
            return out.total, dict(out.terms), dict(out.taps)

        out = Objective(*torch.vmap(of_client, in_dims=(0, 0, members.dims(batch)))(entries, private, batch))
        parameters, retained = [entries[name] for name in self.trainable], keep_graph or None
        # the gradients of the sum over clients are those of each
        gradients = torch.autograd.grad(out.total.sum(), parameters, materialize_grads=True, retain_graph=retained)
        return out, gradients

    def _gradients_at_moved(
        self, entries: Tree, parameters: Tree, gradients: Sequence[Tensor], batch: Batch
    ) -> Sequence[Tensor]:
        """The gradients at the parameters that the phase's ascent moves to. Batch norm counts the batch once."""
        ascent, named = self.phase.ascent, dict(zip(parameters, gradients, strict=True))
        assert ascent is not None
        with torch.no_grad():
            moves = self._mapped(ascent, named, parameters)
        leaves = {name: value.detach() + moves[name] if name in moves else value for name, value in parameters.items()}
        buffers = {name: entries[name].clone() for name in self.buffers}
        moved_entries = entries | buffers | {name: leaf.detach().requires_grad_() for name, leaf in leaves.items()}
        private = self.consts.first(len(batch.y))
        return self._loss_and_gradients(moved_entries, private, batch, keep_graph=False)[1]

    def _stacked_phase(self) -> Train:
        grad_map, project = self.phase.grad_map, self.phase.project
        return replace(
            self.phase,
            grad_map=grad_map and (lambda gradients, trainable, _: self._mapped(grad_map, gradients, trainable)),
            project=project and (lambda trainable, _: self._mapped(project, trainable)),
        )

    def _mapped(self, function: Callable[..., Tree], *trees: Tree) -> Tree:
        private = self.consts.first(len(next(iter(trees[0].values()))))

        def of_client(private: list[Tensor], *trees: Tree) -> Tree:
            return function(*trees, self.consts.of_one(private))

        mapped: Tree = torch.vmap(of_client)(private, *trees)
        return mapped

    def add_terms(self, out: Objective, counted: Tensor | None) -> None:
        """Add a step's loss terms to those of the clients that count, [K] bool, or of all."""
        for name, term in out.terms.items():
            term = term.detach() if counted is None else torch.where(counted, term.detach(), 0.0)
            self.terms.setdefault(name, torch.zeros_like(term))[: len(term)] += term

    def _collect(self, taps: Mapping[str, Tensor], batch: Batch, last_epoch: list[bool]) -> None:
        """Add a step's statistics to those of clients in their last epoch, or of all clients if all epochs count."""
        statistics, throughout = self.phase.collect, self.phase.throughout
        if not statistics or not (throughout or any(last_epoch)):
            return
        if not all(last_epoch) and not throughout:
            counted = torch.tensor(last_epoch, device=batch.y.device)
            mask = batch.y.new_ones(batch.y.shape[:2], dtype=torch.bool) if batch.mask is None else batch.mask
            batch = batch._replace(mask=mask & counted.unsqueeze(1))

        def added(sums: dict[str, Tree], taps: Tree, batch: Batch) -> dict[str, Tree]:
            return add_statistics(statistics, sums, tap_of(taps), batch, self.classes)

        tapped = {str(s.of): taps[str(s.of)].detach() for s in statistics.values()}
        sums = members.first_rows(self.sums, len(last_epoch))
        members.put_rows(self.sums, torch.vmap(added, in_dims=(0, 0, members.dims(batch)))(sums, tapped, batch))

    def _settle(self, batches: Sequence[Sequence[Tensor]]) -> None:
        named = {name: totals.tolist() for name, totals in self.terms.items()}
        for row, (client, parts) in enumerate(zip(self.clients, batches, strict=True)):
            means = {name: totals[row] / (len(parts) // self.phase.epochs) for name, totals in named.items()}
            statistics = self.phase.collect.items()
            collected = {name: statistic.result(members.row_of(self.sums[name], row)) for name, statistic in statistics}
            client.trained(means, to_device(collected, CPU), len(parts), sum(part.numel() for part in parts))
