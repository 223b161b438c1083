"""Metrics from counts of true and predicted classes, with a value for each class.

Which classes a mean is over differs, and `details` says it: recall and specificity need tested samples of a class,
precision and F1 count a class that is only predicted as 0. So scikit-learn agrees with all values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedloom.evaluation.metric import METRICS, AtLevel, Metric, Predictions

# The classes that a mean is over, in the words of `details`.
_TESTED = "classes with tested samples"
_MET = "classes with tested samples or predictions, undefined values count as 0"
_EVERY = "all classes, undefined values count as 0"
_DEFINED = "classes with a value"
_LARGEST_MATRIX = 256  # classes; with more only the three counts of each class are kept


@dataclass(frozen=True, slots=True, eq=False)
class ClassCounts(Metric):
    """Counts of classes. The pooled samples have the confusion matrix, each client its three counts of each class.
    confusion: samples by true and predicted class [C, C] int64, or [0, 0]. counts: true, predicted and correctly
    predicted samples of each class [3, C] int64, or [3, 0] where the matrix has them. Of several labels [4, L]: the
    last row counts the samples that record a label."""

    confusion: Tensor
    counts: Tensor
    shared: ClassVar[str] = "class_counts"
    class_set: ClassVar[str] = _TESTED

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        classes = predictions.logits.shape[1]
        labels, predicted = predictions.labels.cpu(), predictions.predicted.cpu()
        if labels.dim() == 2:
            masks = (labels == 1, (labels >= 0) & (predicted == 1), (labels == 1) & (predicted == 1), labels >= 0)
            return cls(_no_matrix(), torch.stack([mask.sum(0) for mask in masks]))
        if classes > _LARGEST_MATRIX:
            groups = (labels, predicted, labels[labels == predicted])
            return cls(_no_matrix(), torch.stack([group.bincount(minlength=classes) for group in groups]))
        pairs = (labels * classes + predicted).bincount(minlength=classes * classes)
        return cls(pairs.view(classes, classes), torch.zeros(3, 0, dtype=torch.int64))

    def vectors(self) -> Tensor:
        """True, predicted and correctly predicted samples of each class [3, C] int64."""
        matrix = self.confusion
        return torch.stack([matrix.sum(1), matrix.sum(0), matrix.diagonal()]) if len(matrix) else self.counts[:3]

    def merge(self, further: Self) -> Self:
        if len(self.confusion) == len(further.confusion):
            return type(self)(self.confusion + further.confusion, self.counts + further.counts)
        return type(self)(_no_matrix(), self.vectors() + further.vectors())

    def reduced(self) -> Self:
        return type(self)(_no_matrix(), self.vectors()) if len(self.confusion) else self

    def client_details(self) -> Mapping[str, list[int]]:
        pairs = self.confusion.nonzero()
        samples = self.confusion[pairs[:, 0], pairs[:, 1]]
        return {"confusion": torch.column_stack([pairs, samples]).flatten().tolist()} if len(pairs) else {}

    def check(self, total: int) -> None:
        true, predicted, correct = self.vectors()
        both = torch.minimum(true, predicted)
        if len(self.counts) == 4:
            fits = bool((torch.maximum(true, predicted) <= self.counts[3]).all()) and int(self.counts[3].max()) <= total
        else:
            fits = int(true.sum()) == int(predicted.sum()) == total
        if not (fits and bool(((correct >= 0) & (correct <= both)).all())):
            raise ValueError(f"counts of classes that {total} samples cannot have")
        if bool((self.confusion < 0).any()):
            raise ValueError("a confusion matrix with negative counts")

    def f1(self) -> Tensor:
        """The harmonic mean of precision and recall [C] float64; NaN for a class without samples and predictions."""
        true, predicted, correct = self.vectors().double()
        return torch.div(2 * correct, true + predicted)

    def by_class(self) -> Tensor:
        """The values of the metric by class [C] float64, NaN where one is not defined: recall, unless a metric has its
        own."""
        true, _, correct = self.vectors().double()
        return torch.div(correct, true)

    def in_mean(self) -> Tensor:
        """The values by class that the mean is over, as `class_set` says."""
        values, (true, predicted, _) = self.by_class(), self.vectors()
        if self.class_set == _EVERY and bool(true.any()):
            return values.nan_to_num(0.0)
        if self.class_set == _MET:
            return values[true + predicted > 0].nan_to_num(0.0)
        values = values[true > 0] if self.class_set == _TESTED else values
        return values[~values.isnan()]

    def compute(self) -> float:
        return float(self.in_mean().mean())

    def details(self) -> Mapping[str, Any]:
        positives = {"positives": self.counts[0].tolist()} if len(self.counts) == 4 else {}
        return {"by_class": plain(self.by_class()), "set": self.class_set, "classes": len(self.in_mean())} | positives


class OfAllClasses(ClassCounts):
    """A metric of all classes together, which has no value for each."""

    def details(self) -> Mapping[str, Any]:
        return {}


@METRICS.register("balanced_accuracy")
class BalancedAccuracy(ClassCounts):
    """The mean recall over the classes that the tested samples have."""

    def details(self) -> Mapping[str, Any]:
        classes = 0 if len(self.counts) == 4 else int((self.vectors()[0] > 0).sum())
        chance = {"chance": 1 / classes} if classes else {}
        return chance | ({"confusion": self.confusion.tolist()} if len(self.confusion) else {})


@METRICS.register("specificity")
class Specificity(ClassCounts):
    """The share of the other classes' samples that is not taken for a class, as a mean over tested classes."""

    on_request: ClassVar[bool] = True

    def by_class(self) -> Tensor:
        true, predicted, correct = self.vectors().double()
        others = true.sum() - true
        return torch.div(others - (predicted - correct), others)


@METRICS.register("ppv")
class PositivePredictiveValue(ClassCounts):
    """Precision by class, and its mean over the classes that were predicted."""

    on_request, class_set = True, _DEFINED

    def by_class(self) -> Tensor:
        _, predicted, correct = self.vectors().double()
        return torch.div(correct, predicted)


@METRICS.register("npv")
class NegativePredictiveValue(ClassCounts):
    """The share of the samples not taken for a class that are not of it, as a mean over classes.
    A class for which all samples are taken has none."""

    on_request, class_set = True, _DEFINED

    def by_class(self) -> Tensor:
        true, predicted, correct = self.vectors().double()
        rejected = true.sum() - predicted
        return torch.div(rejected - (true - correct), rejected)


@METRICS.register("ppv@prevalence=0.1")
class PpvAtPrevalence(PositivePredictiveValue, metaclass=AtLevel):
    """PPV by class where the share in the name of all samples were of the class, from recall and specificity."""

    name: ClassVar[str] = "ppv@prevalence=0.1"

    def by_class(self) -> Tensor:
        true, predicted, correct = self.vectors().double()
        share = float(self.name.partition("=")[2])
        found, alarms = share * correct / true, (1 - share) * (predicted - correct) / (true.sum() - true)
        return torch.div(found, found + alarms)


@METRICS.register("npv@prevalence=0.1")
class NpvAtPrevalence(NegativePredictiveValue, metaclass=AtLevel):
    """NPV by class where the share in the name of all samples were of the class, from recall and specificity."""

    name: ClassVar[str] = "npv@prevalence=0.1"

    def by_class(self) -> Tensor:
        true, predicted, correct = self.vectors().double()
        share, others = float(self.name.partition("=")[2]), true.sum() - true
        missed, cleared = share * (true - correct) / true, (1 - share) * (others - predicted + correct) / others
        return torch.div(cleared, cleared + missed)


@METRICS.register("macro_f1")
class MacroF1(ClassCounts):
    """The mean F1 over the classes that the tested samples have or that were predicted."""

    multi_label, class_set = True, _MET
    by_class = ClassCounts.f1


@METRICS.register("weighted_f1")
class WeightedF1(OfAllClasses):
    """The mean F1 over classes, each weighted by its number of tested samples."""

    def compute(self) -> float:
        return weighted_mean(self.f1(), self.vectors()[0].double())


@METRICS.register("micro_f1")
class MicroF1(OfAllClasses):
    """F1 of the samples of all classes together. Of one label a sample it is the accuracy."""

    on_request = multi_label = True
    weights: ClassVar[tuple[float, float]] = (0.5, 0.5)  # of true and of predicted samples, in the denominator

    def compute(self) -> float:
        true, predicted, correct = self.vectors().double().sum(1)
        return float(correct / (self.weights[0] * true + self.weights[1] * predicted))


@METRICS.register("mcc")
class MatthewsCorrelation(OfAllClasses):
    """Matthews' correlation of true and predicted classes, -1 to 1; 0 if all samples have one class or one prediction.
    Gorodkin 2004 defines it for several classes."""

    def compute(self) -> float:
        true, predicted, correct = self.vectors().double()
        total = true.sum()
        if not float(total):
            return math.nan
        # With 10^8 samples the squares still fit a float64 exactly.
        spread = (total**2 - true.square().sum()) * (total**2 - predicted.square().sum())
        return float((correct.sum() * total - true @ predicted) / spread.sqrt()) if float(spread) else 0.0


def mean_of_defined(values: Tensor) -> float:
    """The mean of the values that are not NaN; NaN without any."""
    return float(values[~values.isnan()].mean())


def weighted_mean(values: Tensor, weights: Tensor) -> float:
    """The weighted mean of the values that are not NaN; NaN without any."""
    defined = ~values.isnan()
    total = float(weights[defined].sum())
    return float((values[defined] * weights[defined]).sum()) / total if total else math.nan


def plain(values: Tensor) -> list[float | None]:
    """Values as a list, None for NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def _no_matrix() -> Tensor:
    return torch.zeros(0, 0, dtype=torch.int64)
