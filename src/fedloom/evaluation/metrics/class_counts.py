"""Metrics from counts of true and predicted classes.

Balanced accuracy is the mean recall over the classes that the tested samples have, macro F1 the mean F1 over those that
they have or that were predicted. So a class that a client does not have is no failure. scikit-learn agrees with all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedloom.evaluation.metric import METRICS, Metric, Predictions

_LARGEST_MATRIX = 256  # classes; with more only the three counts of each class are kept


@dataclass(frozen=True, slots=True, eq=False)
class ClassCounts(Metric):
    """Counts of classes. The pooled samples have the confusion matrix, each client its three counts of each class.

    Attributes:
        confusion: samples by true and predicted class [C, C] int64, or [0, 0].
        counts: true, predicted and correctly predicted samples of each class [3, C] int64, or [3, 0] where the matrix
            has them.
    """

    confusion: Tensor
    counts: Tensor
    shared: ClassVar[str] = "class_counts"

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        """The state of one batch."""
        classes = predictions.logits.shape[1]
        labels, predicted = predictions.labels.cpu(), predictions.predicted.cpu()
        if classes > _LARGEST_MATRIX:
            groups = (labels, predicted, labels[labels == predicted])
            return cls(_empty(0, 0), torch.stack([group.bincount(minlength=classes) for group in groups]))
        pairs = (labels * classes + predicted).bincount(minlength=classes * classes)
        return cls(pairs.view(classes, classes), _empty(3, 0))

    def vectors(self) -> Tensor:
        """True, predicted and correctly predicted samples of each class [3, C] int64."""
        matrix = self.confusion
        return torch.stack([matrix.sum(1), matrix.sum(0), matrix.diagonal()]) if len(matrix) else self.counts

    def merge(self, further: Self) -> Self:
        """The counts of both; without the matrix if one of them has none."""
        if len(self.confusion) == len(further.confusion):
            return type(self)(self.confusion + further.confusion, self.counts + further.counts)
        return type(self)(_empty(0, 0), self.vectors() + further.vectors())

    def reduced(self) -> Self:
        """The three counts of each class, without the matrix."""
        return type(self)(_empty(0, 0), self.vectors())

    def client_details(self) -> Mapping[str, list[int]]:
        """The pairs of classes that occur, one after another: true class, predicted class, samples. So a client has at
        most as many pairs as samples."""
        pairs = self.confusion.nonzero()
        samples = self.confusion[pairs[:, 0], pairs[:, 1]]
        return {"confusion": torch.column_stack([pairs, samples]).flatten().tolist()} if len(pairs) else {}

    def check(self, total: int) -> None:
        """Raise `ValueError` unless `total` samples can have these counts."""
        true, predicted, correct = self.vectors()
        both = torch.minimum(true, predicted)
        if not (int(true.sum()) == int(predicted.sum()) == total and bool(((correct >= 0) & (correct <= both)).all())):
            raise ValueError(f"counts of classes that {total} samples cannot have")
        if bool((self.confusion < 0).any()):
            raise ValueError("a confusion matrix with negative counts")

    def recall(self) -> Tensor:
        """The share of each class that is predicted as it [C] float64; NaN for a class without samples."""
        true, _, correct = self.vectors().double()
        return torch.div(correct, true)

    def precision(self) -> Tensor:
        """The share of the predictions of each class that are correct [C] float64; NaN where it is never predicted."""
        _, predicted, correct = self.vectors().double()
        return torch.div(correct, predicted)

    def f1(self) -> Tensor:
        """The harmonic mean of precision and recall [C] float64; NaN for a class without samples and predictions."""
        true, predicted, correct = self.vectors().double()
        return torch.div(2 * correct, true + predicted)

    def compute(self) -> float:
        """The mean recall over classes with samples."""
        return mean_of_defined(self.recall())

    def details(self) -> Mapping[str, Any]:
        """The value of an equal guess among the classes that the samples have, and the confusion matrix."""
        classes = int((self.vectors()[0] > 0).sum())
        chance = {"chance": 1 / classes} if classes else {}
        return chance | ({"confusion": self.confusion.tolist()} if len(self.confusion) else {})


@METRICS.register("balanced_accuracy")
class BalancedAccuracy(ClassCounts):
    """The mean recall over the classes that the tested samples have.

    Example:
        >>> import torch
        >>> logits, labels = torch.eye(2)[[0, 0, 0, 0]], torch.tensor([0, 0, 0, 1])
        >>> BalancedAccuracy.new(Predictions(logits, labels)).compute()
        0.5
    """

    __slots__ = ()


@METRICS.register("recall")
class Recall(ClassCounts):
    """Recall by class; its mean is the balanced accuracy.

    Example:
        >>> import torch
        >>> logits, labels = torch.eye(2)[[0, 0, 0, 1]], torch.tensor([0, 0, 1, 1])
        >>> Recall.new(Predictions(logits, labels)).details()
        {'by_class': [1.0, 0.5]}
    """

    __slots__ = ()

    def details(self) -> Mapping[str, Any]:
        """Recall by class."""
        return {"by_class": plain(self.recall())}


@METRICS.register("precision")
class Precision(ClassCounts):
    """Precision by class, and its mean over the classes that were predicted.

    Example:
        >>> import torch
        >>> logits, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 1, 1, 1])
        >>> Precision.new(Predictions(logits, labels)).compute()
        0.75
    """

    __slots__ = ()

    def compute(self) -> float:
        """The mean precision over classes that were predicted."""
        return mean_of_defined(self.precision())

    def details(self) -> Mapping[str, Any]:
        """Precision by class."""
        return {"by_class": plain(self.precision())}


@METRICS.register("macro_f1")
class MacroF1(ClassCounts):
    """The mean F1 over the classes that the tested samples have or that were predicted.

    Example:
        >>> import torch
        >>> logits, labels = torch.eye(3)[[0, 0]], torch.tensor([0, 1])
        >>> round(MacroF1.new(Predictions(logits, labels)).compute(), 4)
        0.3333
    """

    __slots__ = ()

    def compute(self) -> float:
        """The mean of F1 over classes with samples or predictions."""
        return mean_of_defined(self.f1())

    def details(self) -> Mapping[str, Any]:
        """F1 by class."""
        return {"by_class": plain(self.f1())}


@METRICS.register("weighted_f1")
class WeightedF1(ClassCounts):
    """The mean F1 over classes, each weighted by its number of tested samples.

    Example:
        >>> import torch
        >>> logits, labels = torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1])
        >>> WeightedF1.new(Predictions(logits, labels)).compute()
        1.0
    """

    __slots__ = ()

    def compute(self) -> float:
        """The mean of F1, weighted by samples."""
        true = self.vectors()[0].double()
        return weighted_mean(self.f1(), true)


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


def _empty(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)
