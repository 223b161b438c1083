"""Mergeable metrics: sums that add up over batches and clients, so that every mean is right by construction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import cross_entropy


@dataclass(frozen=True, slots=True)
class Tested:
    """Correct predictions, summed cross-entropy (nats) and number of samples.

    fooled, aimed: where an attack wants samples to be taken for another class, how many are, and how many it wants.
    """

    correct: int
    loss_sum: float
    total: int
    fooled: int = 0
    aimed: int = 0

    @staticmethod
    def of(logits: Tensor, labels: Tensor, aims: Tensor | None = None) -> Tested:
        """logits [B, C], labels [B]; aims [C]: what an attack wants each class to be taken for, -1 for nothing."""
        loss, predictions = cross_entropy(logits, labels, reduction="sum"), logits.argmax(1)
        tested = Tested(int((predictions == labels).sum()), float(loss), len(labels))
        if aims is None:
            return tested
        target_labels = aims[labels]
        return replace(tested, fooled=int((predictions == target_labels).sum()), aimed=int((target_labels >= 0).sum()))

    @staticmethod
    def sum(parts: Iterable[Tested]) -> Tested:
        """All parts as one."""
        correct, loss_sum, total, fooled, aimed = 0, 0.0, 0, 0, 0
        for part in parts:
            correct, loss_sum, total = correct + part.correct, loss_sum + part.loss_sum, total + part.total
            fooled, aimed = fooled + part.fooled, aimed + part.aimed
        return Tested(correct, loss_sum, total, fooled, aimed)

    @property
    def accuracy(self) -> float:
        """Share of correct predictions in [0, 1]; NaN without samples."""
        return self.correct / self.total if self.total else float("nan")

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats; NaN without samples."""
        return self.loss_sum / self.total if self.total else float("nan")
