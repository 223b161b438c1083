"""One client's round: begin, phases, end. The reference semantics that every engine must reproduce."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.core.trees import Tree
from fedloom.data.augment import Augmentation
from fedloom.data.dataset import Dataset
from fedloom.engine.constants import Stacked, placed
from fedloom.engine.keys import phase_key
from fedloom.engine.optim import Optimizer
from fedloom.engine.pulls import gradient_norms
from fedloom.engine.recorded import Recorder, Taken
from fedloom.methods.method import ClientContext, Method, Work
from fedloom.methods.phases import Batch, Collect, Consts, Objective, OptimizerSpec, Statistic, Train
from fedloom.nets.functional import Functional
from fedloom.nets.groups import group_of
from fedloom.nets.live import Live
from fedloom.nets.net import Net
from fedloom.nets.roles import has_batch_norm

# Statistics passes and evaluation take batches of this size: large enough to be fast, fixed so that bits do not depend
# on the engine.
PASS_BATCH = 256

CPU = torch.device("cpu")

# Numbers that are gathered at once: few calls for small batches, and what is gathered is still in the cache when used.
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How clients train unless a phase says otherwise. `augment` is for the batches of training phases alone."""

    batch_size: int
    optimizer: OptimizerSpec
    augment: Augmentation = field(default_factory=Augmentation)


@dataclass(frozen=True, slots=True)
class Job:
    """One client's work for one round. `indices` [n_k] are its training samples in the shared set.

    probe: whether the gradients of the loss's terms are measured on the last step of each training phase.
    """

    ctx: ClientContext
    payload: Record
    state: Record
    indices: Tensor
    probe: bool = False


@dataclass(frozen=True, slots=True)
class Done:
    """What a client leaves: payload, next state, mean loss terms of its last epoch, steps and samples processed.

    norms: of the gradients of loss terms, where asked for (`engine/pulls.py`).
    """

    client: int
    payload: Record
    state: Record
    terms: Mapping[str, float]
    steps: int
    samples: int
    seconds: float
    norms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Draws:
    """A client's generators of one round: the order of its samples, and how they are augmented, if they are."""

    order: np.random.Generator
    augment: np.random.Generator | None


class Worker:
    """Runs clients one after another on live nets, one for each architecture. Holds no state between clients.

    Nets and data lie on `device`; what jobs bring, and what clients leave, on the CPU.

    Raises `ConfigError` for an augmentation that does not fit the data.
    """

    def __init__(
        self,
        method: Method,
        nets: Sequence[Net],
        data: Dataset,
        local: LocalTraining,
        device: torch.device = CPU,
    ) -> None:
        local.augment.check(data)
        self.method, self.data, self.local, self.device = method, data.to(device), local, device
        self.lives = [Live(net.to(device)) for net in nets]
        self.recorder = Recorder()
        self._skip_single = [method.spec.batch_statistics or has_batch_norm(net) for net in nets]
        self.drops_out = any("Dropout" in type(m).__name__ for net in nets for m in net.modules())

    def twin(self) -> Worker:
        """A worker with nets of its own, on the same data."""
        return Worker(self.method, [copy.deepcopy(live.net) for live in self.lives], self.data, self.local, self.device)

    def live_of(self, client: int) -> Live:
        """The live net that fits a client's trees; of -1, the server's."""
        return self.lives[0 if client < 0 else group_of(client, self.lives)]

    def run(self, job: Job) -> Done:
        """The whole round of one client. Raises `ClientError` that says where an exception came from."""
        started, ctx, stage = time.perf_counter(), job.ctx, "begin"
        try:
            start = self.method.begin(job.payload, job.state, ctx)
            live = self.lives[ctx.task.group]
            live.load(start.tree)
            consts = placed(dict(start.consts), self.device)
            collected: dict[str, Any] = {}
            terms: dict[str, float] = {}
            measured: dict[str, float] = {}
            steps = samples = 0
            draws = self.draws(job)
            drawing = ctx.task.streams.isolated("dropout", ctx.round, ctx.client) if self.drops_out else nullcontext()
            with drawing:  # around all phases: two of them must not drop the same units
                for number, phase in enumerate(self.method.phases(start, ctx)):
                    stage = f"phase {number}"
                    if isinstance(phase, Collect):
                        results = self._collect(live.net, phase.statistics, job.indices, consts, ctx)
                    else:
                        trained = self._train(live, phase, job, consts, draws)
                        measured |= trained.norms
                        results, terms = trained.collected, trained.terms or terms
                        steps, samples = steps + trained.steps, samples + trained.samples
                    collected |= results
                    consts |= results
            stage = "end"
            payload, state = self.method.end(Work(live.weights(), placed(collected, CPU), steps), job.state, ctx)
        except Exception as error:
            raise ClientError(ctx.client, ctx.round, stage, error) from error
        return Done(ctx.client, payload, state, terms, steps, samples, time.perf_counter() - started, measured)

    def _train(self, live: Live, phase: Train, job: Job, consts: Consts, draws: Draws) -> _Trained:
        ctx, net = job.ctx, live.net
        moving: Tree = {n: p for n, p in live.parameters.items() if moves(n, phase, ctx)}
        optimizer = Optimizer(phase.optimizer or self.local.optimizer, list(moving.values()))
        tally = _Tally(phase.collect, ctx.task.num_classes)
        measured: dict[str, float] = {}
        samples = 0
        for epoch in range(phase.epochs):
            if phase.refresh:
                consts = consts | self._collect(net, phase.refresh, job.indices, consts, ctx)
            if not net.training:
                net.train()
            steps = Steps(self.recorder, live, phase, consts, list(moving), recordable=not self.drops_out)
            last = self.batches(job) - 1
            for number, batch in enumerate(self.epoch(job, draws)):
                probed = job.probe and epoch == phase.epochs - 1 and number == last and optimizer.steps
                out, gradients = steps.taken(batch, keep_graph=bool(probed))
                if epoch == phase.epochs - 1:
                    tally.add(out, batch)
                if probed:  # never a first step, which may have no pull yet
                    norms = gradient_norms(out.terms, optimizer.parameters)
                    measured = {name: float(norm) for name, norm in norms.items()}
                update(phase, gradients, moving, consts, optimizer)
                samples += len(batch.y)
        if phase.collect and not tally.steps:  # a single sample under batch norm: no step, but a statistic
            net.eval()
            batch = Batch(self.data.gather(job.indices), self.data.y[job.indices])
            tally.add(objective(net, batch, consts, phase), batch)
        return _Trained(tally.collected(), tally.means(), optimizer.steps, samples, measured)

    @torch.no_grad()
    def _collect(
        self, net: Net, statistics: Mapping[str, Statistic], indices: Tensor, consts: Consts, ctx: ClientContext
    ) -> dict[str, Any]:
        net.eval()
        sums: dict[str, Tree] = {name: {} for name in statistics}
        for part in torch.split(indices, PASS_BATCH):
            batch = Batch(self.data.gather(part), self.data.y[part])
            for name, statistic in statistics.items():
                assert callable(statistic.of), f"statistic {name} of a pass names a tap; it needs a function"
                values = statistic.of(net, batch, consts)
                sums[name] = statistic.add(sums[name], values, batch, ctx.task.num_classes)
        return {name: statistics[name].result(sums[name]) for name in sums}

    def draws(self, job: Job) -> Draws:
        """The client's generators of this round."""
        streams, ctx = job.ctx.task.streams, job.ctx
        augmented = self.local.augment.active
        return Draws(
            streams.numpy("shuffle", ctx.round, ctx.client),
            streams.numpy("augment", ctx.round, ctx.client) if augmented else None,
        )

    def batches(self, job: Job) -> int:
        """Number of batches in one epoch: the last, smaller one stays, unless it has one sample and that is too few."""
        whole, rest = divmod(len(job.indices), self.local.batch_size)
        if rest == 1 and self._skip_single[job.ctx.task.group]:
            rest = 0
        return whole + bool(rest)

    def shuffled(self, job: Job, draws: Draws) -> list[Tensor]:
        """One epoch's batches as indices."""
        order = job.indices[torch.from_numpy(draws.order.permutation(len(job.indices)))]
        return list(torch.split(order, self.local.batch_size)[: self.batches(job)])

    def epoch(self, job: Job, draws: Draws) -> Iterator[Batch]:
        """One epoch's batches, gathered several at a time if they are small."""
        size, parts = self.local.batch_size, self.shuffled(job, draws)
        together = 1 if draws.augment else max(1, _BLOCK // (size * self.data.x[0].numel()))
        for first in range(0, len(parts), together):
            rows = torch.cat(parts[first : first + together])
            inputs = torch.split(self.gathered(rows, draws), size)
            yield from map(Batch, inputs, torch.split(self.data.y[rows], size))

    def gathered(self, part: Tensor, draws: Draws) -> Tensor:
        """The inputs of one training batch, augmented where that is asked for."""
        if draws.augment is None:
            return self.data.gather(part)
        return self.local.augment.gather(self.data, part, draws.augment)


def moves(name: str, phase: Train, ctx: ClientContext) -> bool:
    """Whether a phase trains the parameter `name`."""
    return ctx.task.roles[name] in phase.trains and (phase.nets is None or name.partition(".")[0] in phase.nets)


def objective(net: Net, batch: Batch, consts: Consts, phase: Train) -> Objective:
    """The loss of a phase, as an objective in any case."""
    out = phase.loss(net, batch, consts)
    return out if isinstance(out, Objective) else Objective(out, terms={"loss": out})


class Steps:
    """The steps of one epoch on a live net, up to their gradients."""

    def __init__(
        self, recorder: Recorder, live: Live, phase: Train, consts: Consts, moving: list[str], *, recordable: bool
    ) -> None:
        self._recorder, self._live, self._phase = recorder, live, phase
        self._moving, self._recordable = moving, recordable
        self._parameters = [live.parameters[name] for name in moving]
        self._plain, self._consts = consts, Stacked.of([consts])
        self._key = (id(live), phase_key(phase), self._consts.shape, self._consts.kinds(), tuple(moving))

    def taken(self, batch: Batch, *, keep_graph: bool) -> Taken:
        """One step. keep_graph: its terms will be differentiated."""
        if keep_graph or not self._recordable:
            return self._eager(batch, keep_graph)
        inputs = [*self._live.tree.values(), *self._consts.tensors(), batch.x, batch.y]
        return self._recorder.take(self._key, self._phase, lambda: self._eager(batch), self._pure, inputs)

    def _eager(self, batch: Batch, keep_graph: bool = False) -> Taken:
        out = objective(self._live.net, batch, self._plain, self._phase)
        gradients = torch.autograd.grad(
            out.total, self._parameters, materialize_grads=True, retain_graph=keep_graph or None
        )
        return Taken(out, gradients)

    def _pure(self, *tensors: Tensor) -> Taken:
        """The step from tensors alone: the net's entries, the constants', inputs and labels."""
        given = iter(tensors)
        tree = {name: next(given) for name in self._live.tree}
        consts = self._consts.with_tensors(given).of_one(())
        parameters = [tree[name].detach().requires_grad_() for name in self._moving]
        tree |= dict(zip(self._moving, parameters, strict=True))
        out = Functional(self._live.net).call(objective, tree, Batch(*given), consts, self._phase)
        return Taken(out, torch.autograd.grad(out.total, parameters, materialize_grads=True))


def update(
    phase: Train, gradients: Sequence[Tensor], moving: dict[str, Tensor], consts: Consts, optimizer: Optimizer
) -> None:
    if phase.grad_map is not None:
        mapped = phase.grad_map(dict(zip(moving, gradients, strict=True)), moving, consts)
        gradients = tuple(mapped[name] for name in moving)
    optimizer.step(gradients)
    if phase.project is not None:
        with torch.no_grad():
            projected = phase.project(moving, consts)
            torch._foreach_copy_(optimizer.parameters, [projected[name] for name in moving])


@dataclass(frozen=True, slots=True)
class _Trained:
    """What one training phase leaves beside the weights."""

    collected: dict[str, Any]
    terms: dict[str, float]
    steps: int
    samples: int
    norms: dict[str, float]


class _Tally:
    """Sums over the steps of a last epoch: statistics of taps, and loss terms. Never waits for a value."""

    def __init__(self, statistics: Mapping[str, Statistic], num_classes: int) -> None:
        self._statistics, self._num_classes, self.steps = statistics, num_classes, 0
        self._sums: dict[str, Tree] = {name: {} for name in statistics}
        self._terms: dict[str, Tensor] = {}

    def add(self, out: Objective, batch: Batch) -> None:
        self.steps += 1
        for name, statistic in self._statistics.items():
            tapped = out.taps[str(statistic.of)].detach()
            self._sums[name] = statistic.add(self._sums[name], tapped, batch, self._num_classes)
        for name, term in out.terms.items():
            term = term.detach()
            self._terms[name] = self._terms[name] + term if name in self._terms else term

    def collected(self) -> dict[str, Any]:
        return {name: self._statistics[name].result(sums) for name, sums in self._sums.items()}

    def means(self) -> dict[str, float]:
        return {name: float(total) / self.steps for name, total in self._terms.items()}
