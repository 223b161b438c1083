"""The steps of a training phase of a stack: whose they are, and which of them can be taken together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.engine.client import Worker
from fedloom.engine.members import Member
from fedloom.methods.phases import Train

_MOST = 16  # steps that are taken together, of members of one size: to trace them takes time


@dataclass(frozen=True, slots=True)
class Run:
    """Steps `first` up to `last`, out of `of` in all, of the first `active` members; their samples, in batches that
    follow one another. probed: members whose terms are measured, if any.
    """

    first: int
    last: int
    of: int
    active: int
    samples: list[Tensor]
    probed: Sequence[bool] = ()


@dataclass(frozen=True, slots=True)
class _Own:
    """A member's samples in the order of its batches, of which every epoch has `batches`; the last may be short."""

    samples: Tensor
    epoch: int
    batches: int
    size: int

    def __len__(self) -> int:
        """Steps in all."""
        return self.samples.shape[0] // self.epoch * self.batches

    def start(self, step: int) -> int:
        """The place of the first sample of a step."""
        epoch, batch = divmod(step, self.batches)
        return epoch * self.epoch + batch * self.size

    def count(self, step: int) -> int:
        """Samples of a step."""
        return min(self.size, self.epoch - step % self.batches * self.size)


class Schedule:
    """The runs of steps of all members, the largest first: those who still have batches are always the first rows."""

    def __init__(self, worker: Worker, phase: Train, members: Sequence[Member]) -> None:
        self._members, self._size = members, worker.local.batch_size
        self._own = []
        for member in members:
            orders = [worker.order(member.job, member.draws) for _ in range(phase.epochs)]
            samples = orders[0] if len(orders) == 1 else torch.cat(orders)
            self._own.append(_Own(samples, orders[0].shape[0], worker.batches(member.job), self._size))
        self.steps = [len(own) for own in self._own]
        self.samples = [own.samples.shape[0] for own in self._own]
        alike = self.samples[0] == self.samples[-1]  # else every stack would have runs of its own lengths
        self._together = min(_MOST, worker.together(members[0].draws)) if alike else 1

    def __iter__(self) -> Iterator[Run]:
        done = 0
        while done < self.steps[0]:
            run = self._next(done)
            yield run
            done = run.last

    def opens(self, run: Run) -> bool:
        """Whether an epoch begins with this run, for members with equally many batches."""
        return run.first % self._own[0].batches == 0

    def last_epoch(self, step: int, active: int) -> list[bool]:
        """Of which of the first members a step is in the last epoch."""
        return [step >= len(own) - own.batches for own in self._own[:active]]

    def _next(self, first: int) -> Run:
        """The steps from `first` on that can be taken together: whole batches, but for the last, of one epoch.

        A step at which terms are probed stands alone.
        """
        active, epoch = sum(steps > first for steps in self.steps), self._own[0].batches
        last = min(first + self._together, first - first % epoch + epoch) if self._together > 1 else first + 1
        probed = self._probed(last - 1, active)
        if probed and last - 1 > first:
            return self._run(first, last - 1, active)
        return self._run(first, last, active, probed)

    def _probed(self, step: int, active: int) -> Sequence[bool]:
        """Of which members the terms are measured in a step; a first step may have no pull yet."""
        pairs = zip(self._members[:active], self.steps, strict=False)
        ends = [member.job.probe and step == steps - 1 for member, steps in pairs]
        return ends if any(ends) and step else ()

    def _run(self, first: int, last: int, active: int, probed: Sequence[bool] = ()) -> Run:
        samples = [
            own.samples[own.start(first) : own.start(last - 1) + own.count(last - 1)] for own in self._own[:active]
        ]
        return Run(first, last, self.steps[0], active, samples, probed)
