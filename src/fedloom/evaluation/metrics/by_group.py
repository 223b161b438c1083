"""Accuracy by group of samples: by the client whose samples they are, and by domain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedloom.evaluation.metric import METRICS, Groups, Metric, Predictions


@dataclass(frozen=True, slots=True, eq=False)
class ByGroup(Metric):
    """Counts of correct predictions and of samples in each of G groups.

    Attributes:
        correct: correct predictions of each group [G], int64.
        samples: samples of each group [G], int64. A group without samples is left out of the mean.
    """

    correct: Tensor
    samples: Tensor

    @classmethod
    def of(cls, predictions: Predictions, groups: Groups) -> Self:
        """Return the state of one batch.

        Args:
            predictions: scores and labels of the batch.
            groups: the group of each sample, and the number of groups.
        """
        indices, correct = groups.indices.cpu(), (predictions.predicted == predictions.labels).cpu()
        return cls(indices[correct].bincount(minlength=groups.count), indices.bincount(minlength=groups.count))

    def accuracies(self) -> Tensor:
        """The accuracy in each group [G] float64; NaN in one without samples."""
        return torch.div(self.correct.double(), self.samples.double())

    def compute(self) -> float:
        """The unweighted mean over groups with samples; NaN without any."""
        accuracies = self.accuracies()[self.samples > 0]
        return float(accuracies.mean()) if len(accuracies) else math.nan

    def check(self, total: int) -> None:
        """Raise `ValueError` unless `total` samples can have these counts."""
        possible = bool(((self.correct >= 0) & (self.correct <= self.samples)).all())
        if not possible or int(self.samples.sum()) != total:
            raise ValueError(f"counts of groups that {total} samples cannot have")


class OwnerAccuracy(ByGroup):
    """The mean over clients of the accuracy on each one's samples, of a model that none of them trained.

    Example:
        >>> counts = OwnerAccuracy(torch.tensor([7, 1, 0, 5]), torch.tensor([0, 4, 0, 20]))
        >>> counts.compute()  # 1 of 4 and 5 of 20; clients without samples do not count
        0.25
    """

    __slots__ = ()
    pools_models: ClassVar[bool] = False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        """The state of one batch of clients' samples."""
        assert predictions.owners is not None, "samples of clients have owners"
        return cls.of(predictions, predictions.owners)


@METRICS.register("domain_accuracy")
class DomainAccuracy(ByGroup):
    """The mean over domains of the accuracy on each one's samples, which counts a small domain as much as a large one.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
        >>> labels, domains = torch.tensor([0, 1, 1]), Groups(torch.tensor([0, 0, 1]), 2)
        >>> DomainAccuracy.new(Predictions(logits, labels, domains=domains)).compute()
        0.75
    """

    __slots__ = ()

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        """The state of one batch of a source with domains."""
        assert predictions.domains is not None, "the evaluator has asked for domains"
        return cls.of(predictions, predictions.domains)

    def details(self) -> Mapping[str, Any]:
        """The accuracy in each domain, in the source's order."""
        return {"by_domain": self.accuracies().tolist(), "samples": self.samples.tolist()}
