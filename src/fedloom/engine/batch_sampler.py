"""The batches of a client's training: their number, order and augmentation, drawn from the client's streams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedloom.core.device_copies import sent_to
from fedloom.data.dataset import Dataset
from fedloom.engine.jobs import Draws, Job, LocalTraining
from fedloom.engine.steps import Block
from fedloom.methods.contract.phases import Train

# Numbers that are gathered at once: small batches need few calls, and the gathered block still fits the cache.
_BLOCK_NUMBERS = 1 << 16


class BatchSampler:
    """Draws and gathers the batches of training phases.

    Args:
        data: the shared training set, on the device that trains.
        local_training: batch size and augmentation.
        views: augmented views of each sample, 1 or 2.
        skip_single: for each group of architectures, whether a last batch of one sample is left out.
    """

    def __init__(self, data: Dataset, local_training: LocalTraining, views: int, skip_single: Sequence[bool]) -> None:
        self.data, self.local_training = data, local_training
        self._views, self._skip_single = views, skip_single

    def generators(self, job: Job, prefix: str = "") -> Draws:
        """Return the client's generators of this round. prefix: of the streams' names."""
        streams, ctx = job.ctx.task.streams, job.ctx
        augmented = self.local_training.augment.active
        return Draws(
            streams.numpy(f"{prefix}shuffle", ctx.round, ctx.client),
            streams.numpy(f"{prefix}augment", ctx.round, ctx.client) if augmented else None,
        )

    def batches_per_epoch(self, job: Job, share: float = 1.0) -> int:
        """Return the number of batches in one epoch over a `share` of the samples, with the smaller last batch."""
        full, last_samples = divmod(math.ceil(share * job.indices.numel()), self.local_training.batch_size)
        if last_samples == 1 and self._skip_single[job.ctx.task.group]:
            last_samples = 0
        return full + bool(last_samples)

    def epoch_order(self, job: Job, draws: Draws, share: float = 1.0, batches: int | None = None) -> Tensor:
        """Draw the samples [n] of one epoch, batch after batch, as indices; `batches` limits their number."""
        count = job.indices.numel()
        order = torch.from_numpy(draws.order.permutation(count))[: math.ceil(share * count)]
        batches = self.batches_per_epoch(job, share) if batches is None else batches
        return sent_to(
            job.indices.index_select(0, order[: batches * self.local_training.batch_size]), self.data.y.device
        )

    def blocks(self, job: Job, draws: Draws, share: float, batches: int) -> Iterator[Block]:
        """Draw the batches of one epoch; small ones are gathered several at a time."""
        batch_size, order = self.local_training.batch_size, self.epoch_order(job, draws, share, batches)
        per_block = 1 if draws.augment else max(1, _BLOCK_NUMBERS // (batch_size * self.data.x[0].numel()))
        for start in range(0, len(order), batch_size * per_block):
            indices = order[start : start + batch_size * per_block]
            x = self.gather(indices, draws)
            second_view = self.gather(indices, draws) if self._views == 2 else None
            yield Block(x, self.data.y[indices], batch_size, second_view)

    def gather(self, indices: Tensor, draws: Draws) -> Tensor:
        """Return the inputs of a training batch, augmented if the run augments."""
        if draws.augment is None:
            return self.data.gather(indices)
        return self.local_training.augment.gather(self.data, indices, draws.augment)


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """The length of a training phase for one client, in epochs and batches; the last epoch may be shorter."""

    epochs: int
    epoch_batches: int
    last_epoch_batches: int

    @staticmethod
    def of(sampler: BatchSampler, phase: Train, job: Job) -> PhasePlan:
        """Plan by the phase's epochs, or by its number of steps. A client without a batch takes no step."""
        epoch_batches = sampler.batches_per_epoch(job, phase.share)
        if phase.steps is None or not epoch_batches:
            return PhasePlan(phase.epochs, epoch_batches, epoch_batches)
        epochs = -(-phase.steps // epoch_batches)
        return PhasePlan(epochs, epoch_batches, phase.steps - (epochs - 1) * epoch_batches)

    def batches(self, epoch: int) -> int:
        """Return the number of batches in an epoch, counted from 0."""
        return self.last_epoch_batches if epoch == self.epochs - 1 else self.epoch_batches
