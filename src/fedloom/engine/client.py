"""One client's round: begin, phases, end. The reference semantics that every engine must reproduce."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ClientError
from fedloom.core.records import Record
from fedloom.core.trees import Tree
from fedloom.data.augment import Augmentation
from fedloom.data.dataset import Dataset
from fedloom.engine.constants import placed
from fedloom.engine.optim import Optimizer
from fedloom.engine.recorded import LONGEST_SECONDS, Recorder
from fedloom.engine.steps import Block, Steps, Tally, moves, objective
from fedloom.methods.method import ClientContext, Method, Work
from fedloom.methods.phases import Batch, Collect, Consts, OptimizerSpec, Statistic, Train
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


class Room(Protocol):
    """Memory for what clients leave, which others can read as it is."""

    def empty_like(self, tensor: Tensor) -> Tensor:
        """Room for one tensor."""
        ...

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in here."""
        ...


class Worker:
    """Runs clients one after another on live nets, one for each architecture. Holds no state between clients.

    Nets and data lie on `device`; what jobs bring, and what clients leave, on the CPU. bfloat16: as `Net.in_bfloat16`.
    native: as `Net.native`. record: whether steps that come often are recorded (`engine/recorded.py`).

    Raises `ConfigError` for an augmentation that does not fit the data.
    """

    def __init__(
        self,
        method: Method,
        nets: Sequence[Net],
        data: Dataset,
        local: LocalTraining,
        device: torch.device = CPU,
        *,
        bfloat16: bool = False,
        native: bool = False,
        record: bool = True,
    ) -> None:
        local.augment.check(data)
        self.method, self.data, self.local, self.device = method, data.to(device), local, device
        for part in (module for net in nets for module in net.modules() if isinstance(module, Net)):
            part.in_bfloat16, part.native = bfloat16, native
        self.lives = [Live(net.to(device)) for net in nets]
        self.record = record
        self.recorder = Recorder(longest_seconds=self.longest_recorded)
        self.room: Room | None = None  # for the weights that clients leave
        self._skip_single = [method.spec.batch_statistics or has_batch_norm(net) for net in nets]
        self.drops_out = any("Dropout" in type(m).__name__ for net in nets for m in net.modules())

    def twin(self, *, native: bool | None = None) -> Worker:
        """A worker with nets of its own, on the same data. native: whether they are; None: if these are."""
        nets = [copy.deepcopy(live.net) for live in self.lives]
        return Worker(
            self.method,
            nets,
            self.data,
            self.local,
            self.device,
            bfloat16=nets[0].in_bfloat16,
            native=self.native if native is None else native,
            record=self.record,
        )

    @property
    def native(self) -> bool:
        """Whether its nets take native kernels."""
        return self.lives[0].net.native

    @property
    def longest_recorded(self) -> float:
        """Steps of more seconds are not recorded. On a GPU all are: launches are saved."""
        return (LONGEST_SECONDS if self.device.type == "cpu" else math.inf) if self.record else 0.0

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
            tree = live.weights(self.room.empty_like if self.room else None)
            payload, state = self.method.end(Work(tree, placed(collected, CPU), steps), job.state, ctx)
        except Exception as error:
            raise ClientError(ctx.client, ctx.round, stage, error) from error
        return Done(ctx.client, payload, state, terms, steps, samples, time.perf_counter() - started, measured)

    def _train(self, live: Live, phase: Train, job: Job, consts: Consts, draws: Draws) -> _Trained:
        ctx, net = job.ctx, live.net
        moving: Tree = {name: value for name, value in live.parameters.items() if moves(name, phase, ctx)}
        optimizer = Optimizer(phase.optimizer or self.local.optimizer, list(moving.values()))
        tally = Tally(phase.collect, ctx.task.num_classes)
        measured: dict[str, float] = {}
        samples = 0
        for epoch in range(phase.epochs):
            if phase.refresh:
                consts = consts | self._collect(net, phase.refresh, job.indices, consts, ctx)
            if not net.training:
                net.train()
            steps = Steps(self.recorder, live, phase, consts, moving, optimizer, recordable=not self.drops_out)
            last_epoch, left = epoch == phase.epochs - 1, self.batches(job)
            probing = job.probe and last_epoch
            blocks = self.epoch(job, draws)
            for block in itertools.chain.from_iterable(b.singles() for b in blocks) if probing else blocks:
                samples, left = samples + len(block.y), left - len(block)
                if probing and not left and optimizer.steps:  # a first step may have no pull yet
                    out, norms = steps.probed(*block.batches())
                    measured = {name: float(norm) for name, norm in norms.items()}
                    outs = [out]
                else:
                    outs = steps.taken(block)
                if last_epoch:
                    tally.add(outs, block)
        if phase.collect and not tally.steps:  # a single sample under batch norm: no step, but a statistic
            net.eval()
            block = Block(self.data.gather(job.indices), self.data.y[job.indices], len(job.indices))
            tally.add([objective(net, batch, consts, phase) for batch in block.batches()], block)
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
        whole, rest = divmod(job.indices.numel(), self.local.batch_size)
        if rest == 1 and self._skip_single[job.ctx.task.group]:
            rest = 0
        return whole + bool(rest)

    def order(self, job: Job, draws: Draws) -> Tensor:
        """One epoch's samples, batch after batch."""
        order = torch.from_numpy(draws.order.permutation(job.indices.numel()))
        return job.indices.index_select(0, order[: self.batches(job) * self.local.batch_size]).to(self.device)

    def together(self, draws: Draws) -> int:
        """Batches that are gathered at once."""
        return 1 if draws.augment else max(1, _BLOCK // (self.local.batch_size * self.data.x[0].numel()))

    def epoch(self, job: Job, draws: Draws) -> Iterator[Block]:
        """One epoch's batches, gathered several at a time if they are small."""
        size, order = self.local.batch_size, self.order(job, draws)
        together = size * self.together(draws)
        for first in range(0, len(order), together):
            rows = order[first : first + together]
            yield Block(self.gathered(rows, draws), self.data.y[rows], size)

    def gathered(self, part: Tensor, draws: Draws) -> Tensor:
        """The inputs of one training batch, augmented where that is asked for."""
        if draws.augment is None:
            return self.data.gather(part)
        return self.local.augment.gather(self.data, part, draws.augment)


@dataclass(frozen=True, slots=True)
class _Trained:
    """What one training phase leaves beside the weights."""

    collected: dict[str, Any]
    terms: dict[str, float]
    steps: int
    samples: int
    norms: dict[str, float]
