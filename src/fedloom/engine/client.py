"""One client's round: begin, phases, end. The reference semantics that every engine must reproduce."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.core.trees import Tree, clone
from fedloom.data.augment import Augmentation
from fedloom.data.dataset import Dataset
from fedloom.engine.optim import Optimizer
from fedloom.methods.method import ClientContext, Method, Work
from fedloom.methods.phases import Batch, Collect, Consts, Objective, OptimizerSpec, Statistic, Train
from fedloom.nets.net import Net, tree_of
from fedloom.nets.roles import has_batch_norm

# Statistics passes and evaluation take batches of this size: large enough to be fast, fixed so that bits do not depend
# on the engine.
PASS_BATCH = 256


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How clients train unless a phase says otherwise. `augment` is for the batches of training phases alone."""

    batch_size: int
    optimizer: OptimizerSpec
    augment: Augmentation = field(default_factory=Augmentation)


@dataclass(frozen=True, slots=True)
class Job:
    """One client's work for one round. `indices` [n_k] are its training samples in the shared set."""

    ctx: ClientContext
    payload: Record
    state: Record
    indices: Tensor


@dataclass(frozen=True, slots=True)
class Done:
    """What a client leaves: payload, next state, mean loss terms of its last epoch, steps and samples processed."""

    client: int
    payload: Record
    state: Record
    terms: Mapping[str, float]
    steps: int
    samples: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Draws:
    """A client's generators of one round: the order of its samples, and how they are augmented, if they are."""

    order: np.random.Generator
    augment: np.random.Generator | None


class Worker:
    """Runs clients one after another on one live net. Holds no state between clients.

    Raises `ConfigError` for an augmentation that does not fit the data.
    """

    def __init__(self, method: Method, net: Net, data: Dataset, local: LocalTraining) -> None:
        local.augment.check(data)
        self.method, self.net, self.data, self.local = method, net, data, local
        self._live = tree_of(net)
        self._parameters = dict(net.named_parameters())
        self._skip_single = has_batch_norm(net) or method.spec.batch_statistics
        self._draws = any("Dropout" in type(m).__name__ for m in net.modules())

    def load(self, tree: Tree) -> None:
        """Copy `tree` into the live net."""
        with torch.no_grad():
            torch._foreach_copy_(list(self._live.values()), [tree[name] for name in self._live])

    def run(self, job: Job) -> Done:
        """The whole round of one client. Raises `ClientError` that says where an exception came from."""
        started, ctx, stage = time.perf_counter(), job.ctx, "begin"
        try:
            start = self.method.begin(job.payload, job.state, ctx)
            self.load(start.tree)
            consts = dict(start.consts)
            collected: dict[str, Any] = {}
            terms: dict[str, float] = {}
            steps = samples = 0
            streams = ctx.task.streams
            draws = _Draws(
                streams.numpy("shuffle", ctx.round, ctx.client),
                streams.numpy("augment", ctx.round, ctx.client) if self.local.augment.active else None,
            )
            drawing = streams.isolated("dropout", ctx.round, ctx.client) if self._draws else nullcontext()
            with drawing:  # around all phases: two of them must not drop the same units
                for number, phase in enumerate(self.method.phases(ctx)):
                    stage = f"phase {number}"
                    if isinstance(phase, Collect):
                        results = self._collect(phase.statistics, job.indices, consts, ctx)
                    else:
                        trained = self._train(phase, job, consts, draws)
                        results, terms = trained.collected, trained.terms or terms
                        steps, samples = steps + trained.steps, samples + trained.samples
                    collected |= results
                    consts |= results
            stage = "end"
            payload, state = self.method.end(Work(clone(self._live), collected, steps), job.state, ctx)
        except Exception as error:
            raise ClientError(ctx.client, ctx.round, stage, error) from error
        return Done(ctx.client, payload, state, terms, steps, samples, time.perf_counter() - started)

    def _train(self, phase: Train, job: Job, consts: Consts, draws: _Draws) -> _Trained:
        ctx = job.ctx
        moving: Tree = {n: p for n, p in self._parameters.items() if ctx.task.roles[n] in phase.trains}
        optimizer = Optimizer(phase.optimizer or self.local.optimizer, list(moving.values()))
        tally = _Tally(phase.collect, ctx.task.num_classes)
        samples = 0
        for epoch in range(phase.epochs):
            if phase.refresh:
                consts = consts | self._collect(phase.refresh, job.indices, consts, ctx)
            self.net.train()
            for batch in self._shuffled(job.indices, draws):
                out = self._objective(phase, batch, consts)
                if epoch == phase.epochs - 1:
                    tally.add(out, batch)
                self._step(phase, out.total, moving, consts, optimizer)
                samples += len(batch.y)
        if phase.collect and not tally.steps:  # a single sample under batch norm: no step, but a statistic
            self.net.eval()
            batch = Batch(self.data.gather(job.indices), self.data.y[job.indices])
            tally.add(self._objective(phase, batch, consts), batch)
        return _Trained(tally.collected(), tally.means(), optimizer.steps, samples)

    def _objective(self, phase: Train, batch: Batch, consts: Consts) -> Objective:
        out = phase.loss(self.net, batch, consts)
        return out if isinstance(out, Objective) else Objective(out, terms={"loss": out.detach()})

    @staticmethod
    def _step(phase: Train, total: Tensor, moving: dict[str, Tensor], consts: Consts, optimizer: Optimizer) -> None:
        gradients = torch.autograd.grad(total, optimizer.parameters, materialize_grads=True)
        if phase.grad_map is not None:
            mapped = phase.grad_map(dict(zip(moving, gradients, strict=True)), moving, consts)
            gradients = tuple(mapped[name] for name in moving)
        optimizer.step(gradients)
        if phase.project is not None:
            with torch.no_grad():
                projected = phase.project(moving, consts)
                torch._foreach_copy_(optimizer.parameters, [projected[name] for name in moving])

    @torch.no_grad()
    def _collect(
        self, statistics: Mapping[str, Statistic], indices: Tensor, consts: Consts, ctx: ClientContext
    ) -> dict[str, Any]:
        self.net.eval()
        sums: dict[str, Tree] = {name: {} for name in statistics}
        for part in torch.split(indices, PASS_BATCH):
            batch = Batch(self.data.gather(part), self.data.y[part])
            for name, statistic in statistics.items():
                assert callable(statistic.of), f"statistic {name} of a pass names a tap; it needs a function"
                values = statistic.of(self.net, batch, consts)
                sums[name] = statistic.add(sums[name], values, batch, ctx.task.num_classes)
        return {name: statistics[name].result(sums[name]) for name in sums}

    def _shuffled(self, indices: Tensor, draws: _Draws) -> Iterator[Batch]:
        """One epoch in batches; the last, smaller batch is kept, unless it is one sample where one is too few."""
        augment, rng = self.local.augment, draws.augment
        order = indices[torch.from_numpy(draws.order.permutation(len(indices)))]
        for part in torch.split(order, self.local.batch_size):
            if len(part) > 1 or not self._skip_single:
                x = self.data.gather(part) if rng is None else augment.gather(self.data, part, rng)
                yield Batch(x, self.data.y[part])


@dataclass(frozen=True, slots=True)
class _Trained:
    """What one training phase leaves beside the weights."""

    collected: dict[str, Any]
    terms: dict[str, float]
    steps: int
    samples: int


class _Tally:
    """Sums over the steps of a last epoch: statistics of taps, and loss terms. Never waits for a value."""

    def __init__(self, statistics: Mapping[str, Statistic], num_classes: int) -> None:
        self._statistics, self._num_classes, self.steps = statistics, num_classes, 0
        self._sums: dict[str, Tree] = {name: {} for name in statistics}
        self._terms: dict[str, Tensor] = {}

    def add(self, out: Objective, batch: Batch) -> None:
        self.steps += 1
        for name, statistic in self._statistics.items():
            self._sums[name] = statistic.add(self._sums[name], out.taps[str(statistic.of)], batch, self._num_classes)
        for name, term in out.terms.items():
            self._terms[name] = self._terms[name] + term if name in self._terms else term

    def collected(self) -> dict[str, Any]:
        return {name: self._statistics[name].result(sums) for name, sums in self._sums.items()}

    def means(self) -> dict[str, float]:
        return {name: float(total) / self.steps for name, total in self._terms.items()}
