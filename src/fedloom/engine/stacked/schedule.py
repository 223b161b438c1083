"""The steps of a stack's training phase: the clients that take each step, and their samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.engine.client import Worker
from fedloom.engine.jobs import Client
from fedloom.methods.contract.phases import Train


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
