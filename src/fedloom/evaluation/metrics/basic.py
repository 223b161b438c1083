"""The metrics that every run records (accuracy, loss, success of an attack), and accuracy by group of samples."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from fedloom.evaluation.metric import LARGEST_SUM, METRICS, Groups, Metric, Predictions


@METRICS.register("accuracy")
@dataclass(frozen=True, slots=True)
class Accuracy(Metric):
    """The share of correct predictions in [0, 1]."""

    correct: int
    total: int

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        return cls(int((predictions.predicted == predictions.labels).sum()), len(predictions.labels))

    def compute(self) -> float:
        return self.correct / self.total if self.total else math.nan

    def check(self, total: int) -> None:
        if self.total != total or not 0 <= self.correct <= total:
            raise ValueError(f"{self.correct} of {total} samples cannot be correct")


@dataclass(frozen=True, slots=True)
class MeanOverSamples(Metric):
    """The mean of a value of each sample, from the sum of the values and the number of samples."""

    value_sum: float
    total: int

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        raise NotImplementedError  # subclasses say how; states of functions are of this class, which can be pickled

    def compute(self) -> float:
        return self.value_sum / self.total if self.total else math.nan

    def check(self, total: int) -> None:
        if self.total != total:
            raise ValueError(f"a sum over {self.total} samples; there are {total}")


class NatsOverSamples(MeanOverSamples):
    """A mean in nats, 0 or more. It may be infinite or NaN, if the model diverged."""

    may_diverge, higher_is_better = True, False

    def check(self, total: int) -> None:
        super().check(total)
        # Rounding may leave a loss of almost 0 slightly negative.
        if self.value_sum < -1e-9 or LARGEST_SUM < self.value_sum < math.inf:
            raise ValueError(f"a sum of {self.value_sum:g} nats over {total} samples")


@METRICS.register("loss")
class Loss(NatsOverSamples):
    """The mean cross-entropy in nats.

    Example:
        >>> import torch
        >>> Loss.new(Predictions(torch.zeros(2, 4), torch.tensor([0, 3]))).compute()
        1.3862943649291992
    """

    detailed: ClassVar[bool] = False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        # A sum, because means of batches of different sizes could not be added.
        loss = cross_entropy(predictions.logits, predictions.labels, reduction="sum")
        return cls(float(loss), len(predictions.labels))


@METRICS.register("attack_success")
@dataclass(frozen=True, slots=True)
class AttackSuccess(Metric):
    """The share of samples that are taken for the class that an attack wants; not defined without such an attack."""

    fooled: int
    aimed: int
    over: ClassVar[Literal["clients", "samples", "honest samples"]] = "honest samples"
    multi_label, detailed, higher_is_better = True, False, False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        if predictions.targets is None or predictions.labels.dim() == 2:
            return cls(0, 0)
        targets = predictions.targets[predictions.labels]
        # No prediction equals the -1 of a class that is no target.
        return cls(int((predictions.predicted == targets).sum()), int((targets >= 0).sum()))

    def compute(self) -> float:
        return self.fooled / self.aimed if self.aimed else math.nan

    def check(self, total: int) -> None:
        if not 0 <= self.fooled <= self.aimed <= total:
            raise ValueError(f"{self.fooled} of {self.aimed} samples an attack aims at, among {total}, cannot be")


@dataclass(frozen=True, slots=True, eq=False)
class ByGroup(Metric):
    """Counts of correct predictions [G] and samples [G] of G groups, int64; groups without samples are left out."""

    correct: Tensor
    samples: Tensor
    by: ClassVar[Literal["owners", "domains"]]

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        groups: Groups | None = getattr(predictions, cls.by)
        assert groups is not None, "the evaluator asks for the groups of such a metric"
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
        if not bool(((self.correct >= 0) & (self.correct <= self.samples)).all()) or int(self.samples.sum()) != total:
            raise ValueError(f"counts of groups that {total} samples cannot have")


@dataclass(frozen=True, slots=True, eq=False)
class OverLabels(Metric):
    """A mean over the recorded ones of several labels: sums [L] of a value, and the samples that record each [L]."""

    sums: Tensor
    samples: Tensor
    multi_label: ClassVar[bool] = True

    def compute(self) -> float:
        samples = int(self.samples.sum())
        return float(self.sums.sum()) / samples if samples else math.nan

    def check(self, total: int) -> None:
        most = LARGEST_SUM if self.sums.is_floating_point() else self.samples
        wrong = (self.sums < -1e-9) | ((self.sums > most) & self.sums.isfinite()) | (self.samples < 0)
        if bool((wrong | (self.samples > total)).any()):
            raise ValueError(f"sums by label that {total} samples cannot have")


@METRICS.register("hamming")
class LabelAccuracy(OverLabels):
    """1 - Hamming loss: the share of recorded labels that are predicted right. Of one label a sample the accuracy."""

    on_request: ClassVar[bool] = True

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        return cls((predictions.predicted == predictions.labels).sum(0).cpu(), (predictions.labels >= 0).sum(0).cpu())

    def details(self) -> Mapping[str, Any]:
        return {"by_class": torch.div(self.sums.double(), self.samples.double()).tolist()}


@METRICS.register("exact_match")
class ExactMatch(OverLabels):
    """The share of right samples among those of which all labels are recorded. Of one label a sample the accuracy."""

    on_request: ClassVar[bool] = True

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        right, recorded = (predictions.predicted == predictions.labels).cpu(), (predictions.labels >= 0).cpu()
        right, recorded = (of.view(len(right), -1).all(1).sum().view(1) for of in (right, recorded))
        return cls(right, recorded)


class LabelLoss(OverLabels):
    """The mean binary cross-entropy in nats of the recorded labels."""

    may_diverge, detailed, higher_is_better = True, False, False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        logits, labels = predictions.logits.cpu().double(), predictions.labels.cpu()
        nats = binary_cross_entropy_with_logits(logits, (labels == 1).double(), reduction="none")
        return cls(torch.where(labels >= 0, nats, 0.0).sum(0), (labels >= 0).sum(0))


class OwnerAccuracy(ByGroup):
    """The mean over clients of the accuracy on each one's samples, of a model that none of them trained."""

    by, pools_models = "owners", False


@METRICS.register("domain_accuracy")
class DomainAccuracy(ByGroup):
    """The mean over domains of the accuracy on each one's samples, so a small domain counts as much as a large one."""

    by = "domains"

    def details(self) -> Mapping[str, Any]:
        return {"by_domain": self.accuracies().tolist(), "samples": self.samples.tolist()}


@dataclass(frozen=True, slots=True, eq=False)
class SampleScores(Metric):
    """The class scores of single samples [n, C], and their places in the data [n]. They never leave a node.
    sums: what a node sends instead, if it is asked for it, see `intervals.with_group_sums` [S] float64."""

    logits: Tensor
    indices: Tensor
    sums: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    key: ClassVar[str] = "sample_scores"

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        assert predictions.indices is not None, "the evaluator names the samples"
        return cls(predictions.logits.cpu(), predictions.indices.cpu())

    def merge(self, further: Self) -> Self:
        logits, indices = torch.cat([self.logits, further.logits]), torch.cat([self.indices, further.indices])
        return type(self)(logits, indices, self.sums + further.sums)

    def compute(self) -> float:
        return math.nan

    def reduced(self) -> Self:
        return type(self)(self.logits[:0], self.indices[:0], self.sums)

    def check(self, total: int) -> None:
        if not bool(((self.sums >= 0) & (self.sums <= LARGEST_SUM)).all() and (self.sums[:1] <= total).all()):
            raise ValueError(f"sums over groups that {total} samples cannot have")

    portable = reduced
