"""Who receives the objectives of steps: of a training phase, its sums over epochs that count and measured gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from fedloom.engine.batch_sampler import EpochBatches
from fedloom.engine.jobs import Client, Job
from fedloom.engine.steps import Block, EpochSteps, StepTable, Tally
from fedloom.methods.contract.phases import Batch, Objective, Train


class Results(Protocol):
    """Receives the objectives of steps."""

    def add(self, epoch: EpochBatches, objectives: Sequence[Objective], blocks: Sequence[Block]) -> None:
        """Add the objectives of consecutive steps.

        Args:
            epoch: the epoch in which they were taken.
            objectives: one for each step.
            blocks: the batches of the steps.
        """
        ...

    def add_replayed(self, epoch: EpochBatches, first: int, batches: int, table: StepTable | None) -> None:
        """Add consecutive steps, from the batch `first` of the epoch on; `table` is None if they are not wanted."""
        ...

    def wants(self, epoch: EpochBatches) -> bool:
        """Whether the objectives of an epoch are needed."""
        ...


class NoObjectives:
    """Results of steps that have no objectives, as those of a statistics pass."""

    def add(self, epoch: EpochBatches, objectives: Sequence[Objective], blocks: Sequence[Block]) -> None:
        pass

    def add_replayed(self, epoch: EpochBatches, first: int, batches: int, table: StepTable | None) -> None:
        pass

    def wants(self, epoch: EpochBatches) -> bool:
        """Whether the objectives of an epoch are needed."""
        return False


class EpochResults:
    """Sums the objectives of the last epoch, or of every epoch if the phase needs them.

    Attributes:
        tally: the sums of the present epoch.
        samples: samples processed in all epochs.
        last_epoch: number of the last epoch, counted from 0.
    """

    def __init__(self, phase: Train, job: Job) -> None:
        self._phase, self._classes = phase, job.ctx.task.num_classes
        self.tally = Tally(phase.collect, self._classes)
        self.samples, self.last_epoch, self._epoch = 0, 0, -1
        self._mean_losses: list[float] = []

    def wants(self, epoch: EpochBatches) -> bool:
        """Whether the objectives of an epoch are needed."""
        return epoch.epoch == self.last_epoch or bool(self._phase.until) or self._phase.throughout

    def add(self, epoch: EpochBatches, objectives: Sequence[Objective], blocks: Sequence[Block]) -> None:
        """Add the objectives of steps on batches of an epoch."""
        self._begin(epoch)
        self.samples += sum(len(block.y) for block in blocks)
        if self.wants(epoch):
            self.tally.add(objectives, [block.as_batch() for block in blocks] if self._phase.collect else ())

    def add_replayed(self, epoch: EpochBatches, first: int, batches: int, table: StepTable | None) -> None:
        """Add consecutive steps of an epoch, from the batch `first` on; `table` is None if the epoch is not wanted."""
        self._begin(epoch)
        self.samples += sum(epoch.rows(first, batches))
        if table is not None:
            labels = epoch.labels(first, batches) if self._phase.collect else ()
            self.tally.add_table(table, [Batch(y, y) for y in labels])

    def add_measured(self, epoch: EpochBatches, steps: EpochSteps, client: Client) -> None:
        """Take the last step of an epoch, and measure the gradients of its terms.

        A first step is not measured: weights that have not moved may have no pull yet.

        Args:
            epoch: the epoch, of which one batch is left.
            steps: takes the step.
            client: gets the gradient's norm of each term.
        """
        batch = epoch.take()
        if not steps.optimizer.steps:
            self.add(epoch, steps.run(batch).objectives, [batch])
            return
        result, norms = steps.run_measured(batch.as_batch())
        client.norms |= {name: float(norm) for name, norm in norms.items()}
        self.add(epoch, [result], [batch])

    def ends(self, until: Callable[[Sequence[float]], bool]) -> bool:
        """Whether the phase ends with the present epoch."""
        if not self.tally.steps:
            return False
        self._mean_losses.append(self.tally.mean_total())
        return until(self._mean_losses)

    def _begin(self, epoch: EpochBatches) -> None:
        if epoch.epoch != self._epoch:
            self._epoch = epoch.epoch
            if epoch.epoch == self.last_epoch or self._phase.until:
                self.tally = self.tally.next_epoch(keep_statistics=self._phase.throughout)
