"""The metrics that every run records (accuracy, loss, success of an attack), and accuracy by group of samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedloom.evaluation.metric import LARGEST_SUM, METRICS, Groups, Metric, Predictions


@METRICS.register("accuracy")
@dataclass(frozen=True, slots=True)
class Accuracy(Metric):
    """The share of correct predictions in [0, 1].

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
        >>> Accuracy.new(Predictions(logits, torch.tensor([0, 1, 1]))).compute()
        0.6666666666666666
    """

    correct: int
    total: int

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        """The state of one batch."""
        return cls(int((predictions.predicted == predictions.labels).sum()), len(predictions.labels))

    def compute(self) -> float:
        """correct / total; NaN without samples."""
        return self.correct / self.total if self.total else math.nan

    def check(self, total: int) -> None:
        """Raise `ValueError` unless `correct` of `total` samples can be correct."""
        if self.total != total or not 0 <= self.correct <= total:
            raise ValueError(f"{self.correct} of {total} samples cannot be correct")


@METRICS.register("loss")
@dataclass(frozen=True, slots=True)
class Loss(Metric):
    """The mean cross-entropy in nats.

    Example:
        >>> import torch
        >>> Loss.new(Predictions(torch.zeros(2, 4), torch.tensor([0, 3]))).compute()
        1.3862943649291992
    """

    loss_sum: float
    total: int
    detailed: ClassVar[bool] = False
    may_diverge: ClassVar[bool] = True
    higher_is_better: ClassVar[bool] = False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        """The state of one batch."""
        loss = cross_entropy(predictions.logits, predictions.labels, reduction="sum")
        return cls(float(loss), len(predictions.labels))

    def compute(self) -> float:
        """loss_sum / total; NaN without samples."""
        return self.loss_sum / self.total if self.total else math.nan

    def check(self, total: int) -> None:
        """Raise `ValueError` for a sum that `total` samples cannot have. It may be infinite or NaN."""
        if self.total != total or self.loss_sum < -1e-9 or LARGEST_SUM < self.loss_sum < math.inf:
            raise ValueError(f"a loss of {self.loss_sum:g} over {self.total} samples; {total} were tested")


@METRICS.register("attack_success")
@dataclass(frozen=True, slots=True)
class AttackSuccess(Metric):
    """The share of samples that are taken for the class that an attack wants; not defined without such an attack.

    Example:
        >>> import torch
        >>> logits, labels = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1])
        >>> AttackSuccess.new(Predictions(logits, labels, targets=torch.tensor([-1, 0]))).compute()
        0.0
    """

    fooled: int
    aimed: int
    over: ClassVar[Literal["clients", "samples", "honest samples"]] = "honest samples"
    detailed: ClassVar[bool] = False
    higher_is_better: ClassVar[bool] = False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        """The state of one batch."""
        if predictions.targets is None:
            return cls(0, 0)
        targets = predictions.targets[predictions.labels]
        return cls(int((predictions.predicted == targets).sum()), int((targets >= 0).sum()))

    def compute(self) -> float:
        """fooled / aimed; NaN where no sample is aimed at."""
        return self.fooled / self.aimed if self.aimed else math.nan

    def check(self, total: int) -> None:
        """Raise `ValueError` unless `fooled` of `aimed` of `total` samples can be."""
        if not 0 <= self.fooled <= self.aimed <= total:
            raise ValueError(f"{self.fooled} of {self.aimed} samples an attack aims at, among {total}, cannot be")


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

        predictions: scores and labels of the batch. groups: the group of each sample, and the number of groups.
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
