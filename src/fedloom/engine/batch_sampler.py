"""The batches of a client's training: their number, order and augmentation, drawn from the client's streams."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.trees import sent_to
from fedloom.data.augment import Augmentation
from fedloom.data.dataset import Dataset
from fedloom.engine.jobs import Client, Draws, Job, LocalTraining
from fedloom.methods.contract.phases import Batch, Collect, Train

# Batch size of statistics passes and evaluation: large enough to be fast, fixed so that bits do not depend on the
# engine.
PASS_BATCH = 256
# Numbers that are gathered at once: small batches need few calls, and the gathered block still fits the cache.
_BLOCK_NUMBERS = 1 << 16


class BatchSampler:
    """Draws and gathers the batches of training phases, in 1 or 2 augmented views of each sample. `skip_single` says
    for each group of architectures whether a last batch of one sample is left out."""

    def __init__(self, data: Dataset, local_training: LocalTraining, views: int, skip_single: Sequence[bool]) -> None:
        self.data, self.local_training = data, local_training
        self._views, self._skip_single = views, skip_single
        block = _BLOCK_NUMBERS // (local_training.batch_size * max(1, data.x[:1].numel()))
        # a graph of a GPU gathers single batches, and sums may depend on how they lie in memory
        self.batches_per_block = max(1, block) if data.y.device.type != "cuda" else 1

    def generators(self, job: Job, prefix: str = "") -> Draws:
        """Return the generators of the job's client in this round, from streams whose names begin with `prefix`."""
        drawn = partial(job.ctx.task.streams.numpy, round_=job.ctx.round, client=job.ctx.client)
        augmented = self.local_training.augment.active
        return Draws(drawn(f"{prefix}shuffle"), drawn(f"{prefix}augment") if augmented else None)

    def for_phase(self, phase: Train | Collect, client: Client) -> "tuple[BatchSampler, Job, Draws]":
        """Return the sampler that gathers the samples of a client that a phase works on, the client's job with their
        indices, and its generators. Raises `ConfigError` if the server had to send some."""
        job = client.job
        if phase.on == "own":
            return self, self.job_of(phase, job), client.draws
        received, y = client.start.received, self.data.y
        if received is None or not len(received.x):
            raise ConfigError('a phase with on="received" has no samples: `begin` must return Start(received=...)')
        labels = torch.arange(len(received.x)) if received.y is None else received.y
        data = Dataset(received.x.to(y.device), labels.to(y.device), self.data.classes)
        plain = replace(self.local_training, augment=Augmentation())
        sampler = BatchSampler(data, plain, 1, self._skip_single)
        return sampler, replace(job, indices=torch.arange(len(data))), Draws(client.draws.order, None)

    def job_of(self, phase: Train | Collect, job: Job) -> Job:
        """Return a job with those of its samples that a phase takes, which works on the client's own data."""
        if phase.part is None:
            return job
        return replace(job, indices=phase.part.of(job.indices, job.ctx.task.streams, job.ctx.client))

    def batches_per_epoch(self, job: Job, share: float = 1.0) -> int:
        """Return the number of batches in one epoch over a `share` of the samples, with the smaller last batch."""
        full, last_samples = divmod(math.ceil(share * job.indices.numel()), self.local_training.batch_size)
        # Batch norm has no variance over a single sample.
        if last_samples == 1 and self._skip_single[job.ctx.task.group]:
            last_samples = 0
        return full + bool(last_samples)

    def epoch_order(self, job: Job, draws: Draws, share: float = 1.0, batches: int | None = None) -> Tensor:
        """Draw the samples [n] of one epoch, int64: another `share` of the job's each time, in at most `batches`."""
        count = job.indices.numel()
        # a permutation of all samples, whose beginning is the share
        order = torch.from_numpy(draws.order.permutation(count))
        batches = self.batches_per_epoch(job, share) if batches is None else batches
        samples = min(math.ceil(share * count), batches * self.local_training.batch_size)
        if samples < count:
            order = order[:samples]
        return sent_to(job.indices.index_select(0, order), self.data.y.device)

    def batches(self, job: Job, draws: Draws, share: float, epoch: int, batches: int) -> "EpochBatches":
        """Draw the order of an epoch: a share of the job's samples in at most `batches`, read in turn if augmented."""
        return EpochBatches(self, draws, self.epoch_order(job, draws, share, batches), epoch)

    def block(self, indices: Tensor, draws: Draws) -> list[Batch]:
        """Return samples in all views as batches, which are views of one tensor: sums may depend on addresses."""
        size, views = self.local_training.batch_size, [self.gather(indices, draws) for _ in range(self._views)]
        columns = [torch.split(tensor, size) for tensor in (views[0], self.data.y[indices], *views[1:])]
        return [Batch(x, y, None, *second) for x, y, *second in zip(*columns, strict=True)]

    @cached_property
    def _of_passes(self) -> "BatchSampler":
        """Gathers the batches of statistics passes: large ones, without augmentation, in one view."""
        plain = replace(self.local_training, batch_size=PASS_BATCH, augment=Augmentation())
        return BatchSampler(self.data, plain, 1, self._skip_single)

    def pass_batches(self, indices: Tensor, draws: Draws) -> "EpochBatches":
        """Return samples [n] in their order, without augmentation, as the batches of a statistics pass."""
        return EpochBatches(self._of_passes, Draws(draws.order, None), sent_to(indices, self.data.y.device), 0)

    def gather(self, indices: Tensor, draws: Draws) -> Tensor:
        """Return the inputs of a training batch, augmented if the run augments."""
        if draws.augment is None:
            return self.data.gather(indices)
        return self.local_training.augment.gather(self.data, indices, draws.augment)


class EpochBatches:
    """The batches of one epoch, taken from first to last; small ones are gathered several at a time, as a block. epoch:
    its number, from 0. order: its samples [n]. position: batches taken or skipped."""

    def __init__(self, sampler: BatchSampler, draws: Draws, order: Tensor, epoch: int) -> None:
        self._sampler, self._draws, self.order, self.epoch = sampler, draws, order, epoch
        self.batch_size, self.augmented = sampler.local_training.batch_size, draws.augment is not None
        self.batches_per_block = 1 if self.augmented else sampler.batches_per_block
        self._samples = order.shape[0]
        self.position, self._last = 0, -(-self._samples // self.batch_size)
        self._block: tuple[int, list[Batch]] = -1, []

    def __len__(self) -> int:
        return self._last - self.position

    @property
    def fraction(self) -> float:
        """The part of the epoch that is done."""
        return self.position / max(1, self._last)

    def keep_back(self) -> None:
        """Leave out the last batch, until `restore`."""
        self._last -= 1

    def restore(self) -> None:
        self._last += 1

    @property
    def slot(self) -> int:
        """The index of the next batch in its block."""
        return self.position % self.batches_per_block

    def next_rows(self) -> tuple[int, int]:
        """Return the samples in the next batch, and the number of batches from there on that have as many."""
        full_left = self._samples // self.batch_size - self.position
        if full_left > 0:
            return self.batch_size, min(full_left, len(self))
        return self._samples % self.batch_size, 1

    def samples_in(self, first: int, batches: int) -> int:
        """Return the number of samples in some batches, from the batch `first` of the epoch on."""
        return min(self._samples, (first + batches) * self.batch_size) - first * self.batch_size

    def labels(self, first: int, batches: int) -> list[Tensor]:
        """Return the labels of some batches, from the batch `first` of the epoch on."""
        indices = self.order[first * self.batch_size : (first + batches) * self.batch_size]
        return list(torch.split(self._sampler.data.y[indices], self.batch_size))

    def peek(self) -> Batch:
        """Return the next batch without taking it."""
        number = self.position // self.batches_per_block
        if number != self._block[0]:
            rows = self.batches_per_block * self.batch_size
            self._block = number, self._sampler.block(self.order[number * rows : (number + 1) * rows], self._draws)
        return self._block[1][self.slot]

    def take(self) -> Batch:
        batch = self.peek()
        self.position += 1
        return batch


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """The length of a training phase for one client, in epochs and batches; the last epoch may be shorter."""

    epochs: int
    epoch_batches: int
    last_epoch_batches: int

    @staticmethod
    def of(sampler: BatchSampler, phase: Train, job: Job) -> "PhasePlan":
        """Plan a phase by its epochs or number of steps. A job without a batch in the sampler takes no step."""
        epoch_batches = sampler.batches_per_epoch(job, phase.share)
        steps = phase.steps
        if job.steps is not None:
            steps = min(job.steps, phase.epochs * epoch_batches if steps is None else steps)
        if steps is None or not epoch_batches:
            return PhasePlan(phase.epochs, epoch_batches, epoch_batches)
        epochs = -(-steps // epoch_batches)
        return PhasePlan(epochs, epoch_batches, steps - (epochs - 1) * epoch_batches)

    def batches(self, epoch: int) -> int:
        return self.last_epoch_batches if epoch == self.epochs - 1 else self.epoch_batches
