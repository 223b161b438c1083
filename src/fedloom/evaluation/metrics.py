"""Mergeable metrics: sums that add up over batches and clients, so that every mean is right by construction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import cross_entropy


@dataclass(frozen=True, slots=True)
class Tested:
    """Correct predictions, summed cross-entropy (nats) and number of samples."""

    correct: int
    loss_sum: float
    total: int

    @staticmethod
    def of(logits: Tensor, labels: Tensor) -> Tested:
        """logits [B, C], labels [B]."""
        loss = cross_entropy(logits, labels, reduction="sum")
        return Tested(int((logits.argmax(1) == labels).sum()), float(loss), len(labels))

    @staticmethod
    def sum(parts: Iterable[Tested]) -> Tested:
        """All parts as one."""
        correct, loss_sum, total = 0, 0.0, 0
        for part in parts:
            correct, loss_sum, total = correct + part.correct, loss_sum + part.loss_sum, total + part.total
        return Tested(correct, loss_sum, total)

    @property
    def accuracy(self) -> float:
        """Share of correct predictions in [0, 1]; NaN without samples."""
        return self.correct / self.total if self.total else float("nan")

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats; NaN without samples."""
        return self.loss_sum / self.total if self.total else float("nan")
