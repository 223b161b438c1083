"""Metrics with a value for each class: from counts of true and predicted classes, and from the ranks of scores.

A class without tested samples is left out of the means, so a class that a client does not have is no failure.
scikit-learn agrees with all values.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedloom.evaluation.metric import METRICS, Metric, Predictions

BINS = 4096
_LARGEST_MATRIX = 256  # classes; with more only the three counts of each class are kept
_PORTABLE_COUNTS = 1 << 16  # bins of all classes together that leave a node


# -- from counts -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class ClassCounts(Metric):
    """Counts of classes. The pooled samples have the confusion matrix, each client its three counts of each class.

    confusion: samples by true and predicted class [C, C] int64, or [0, 0]. counts: true, predicted and correctly
    predicted samples of each class [3, C] int64, or [3, 0] where the matrix has them.
    """

    confusion: Tensor
    counts: Tensor
    shared: ClassVar[str] = "class_counts"

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        classes = predictions.logits.shape[1]
        labels, predicted = predictions.labels.cpu(), predictions.predicted.cpu()
        if classes > _LARGEST_MATRIX:
            groups = (labels, predicted, labels[labels == predicted])
            return cls(_no_matrix(), torch.stack([group.bincount(minlength=classes) for group in groups]))
        pairs = (labels * classes + predicted).bincount(minlength=classes * classes)
        return cls(pairs.view(classes, classes), torch.zeros(3, 0, dtype=torch.int64))

    def vectors(self) -> Tensor:
        """True, predicted and correctly predicted samples of each class [3, C] int64."""
        matrix = self.confusion
        return torch.stack([matrix.sum(1), matrix.sum(0), matrix.diagonal()]) if len(matrix) else self.counts

    def merge(self, further: Self) -> Self:
        if len(self.confusion) == len(further.confusion):
            return type(self)(self.confusion + further.confusion, self.counts + further.counts)
        return type(self)(_no_matrix(), self.vectors() + further.vectors())

    def reduced(self) -> Self:
        return type(self)(_no_matrix(), self.vectors())

    def client_details(self) -> Mapping[str, list[int]]:
        """The pairs of classes that occur, one after another: true class, predicted class, samples."""
        pairs = self.confusion.nonzero()
        samples = self.confusion[pairs[:, 0], pairs[:, 1]]
        return {"confusion": torch.column_stack([pairs, samples]).flatten().tolist()} if len(pairs) else {}

    def check(self, total: int) -> None:
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
    """Recall by class; its mean is the balanced accuracy."""

    __slots__ = ()

    def details(self) -> Mapping[str, Any]:
        return {"by_class": plain(self.recall())}


@METRICS.register("precision")
class Precision(ClassCounts):
    """Precision by class, and its mean over the classes that were predicted."""

    __slots__ = ()

    def compute(self) -> float:
        return mean_of_defined(self.precision())

    def details(self) -> Mapping[str, Any]:
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
        return mean_of_defined(self.f1())

    def details(self) -> Mapping[str, Any]:
        return {"by_class": plain(self.f1())}


@METRICS.register("weighted_f1")
class WeightedF1(ClassCounts):
    """The mean F1 over classes, each weighted by its number of tested samples."""

    __slots__ = ()

    def compute(self) -> float:
        return weighted_mean(self.f1(), self.vectors()[0].double())


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


# -- from ranks of scores ----------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, eq=False)
class ClassScores(Metric):
    """The scores of one model: of each sample, or counted in bins, or only the values that they gave.

    A score is softmax of the logits in float64, kept as float32. Above a limit of memory (`evaluation.scores_mib`) the
    scores are counted in equal bins. Within a bin every pair counts half, so the AUROC is off by at most half the share
    of pairs that share a bin. That bound is reported.

    Attributes:
        scores: probabilities [n, C] float32; no rows where they are counted.
        labels: true classes [n] int64.
        bins: numbers of samples of each class and of all others by score [2, C, B] int64; B = 0 where there are none.
        by_class: AUROC, average precision, the bound of the AUROC (NaN: exact) and samples of each class [4, C]
            float64; [4, 0] where they are not yet computed.
        limit: bytes that scores may take.
    """

    scores: Tensor
    labels: Tensor
    bins: Tensor
    by_class: Tensor
    limit: int
    shared: ClassVar[str] = "class_scores"
    needs_scores: ClassVar[bool] = True
    pools_models: ClassVar[bool] = False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        # NaN, of a model that diverged, ties below all other scores
        scores, labels = predictions.probabilities.float().nan_to_num(0.0), predictions.labels.cpu()
        bins = torch.zeros(2, scores.shape[1], 0, dtype=torch.int64)
        return cls(scores, labels, bins, _undefined(0), predictions.scores_bytes)._within_limit()

    def merge(self, further: Self) -> Self:
        if not (self.bins.shape[2] or further.bins.shape[2]):
            scores = torch.cat([self.scores, further.scores])
            labels = torch.cat([self.labels, further.labels])
            return type(self)(scores, labels, self.bins, _undefined(0), self.limit)._within_limit()
        first, second = self.binned(), further.binned()
        count = min(first.bins.shape[2], second.bins.shape[2])
        return first._without_scores(_coarser(first.bins, count) + _coarser(second.bins, count), _undefined(0))

    def binned(self, bins: int = BINS) -> Self:
        """The same scores, counted in bins."""
        if self.bins.shape[2]:
            return self
        classes = self.scores.shape[1]
        index = (self.scores.double() * bins).floor().long().clamp(0, bins - 1)
        # Each class gets its own range of bins, so one bincount counts all classes.
        index += torch.arange(classes) * bins
        of_class = index.gather(1, self.labels[:, None]).flatten().bincount(minlength=classes * bins)
        others = index.flatten().bincount(minlength=classes * bins) - of_class
        return self._without_scores(torch.stack([of_class, others]).view(2, classes, bins), self.by_class)

    def values(self) -> Tensor:
        """AUROC, average precision, bound and samples of each class [4, C] float64."""
        if self.by_class.shape[1]:
            return self.by_class
        if self.bins.shape[2]:
            return torch.stack([_ranked(of_class, others, True) for of_class, others in self.bins.unbind(1)], 1)
        columns = []
        for label, scores in enumerate(self.scores.unbind(1)):
            distinct, index = torch.unique(scores, return_inverse=True)
            of_class = index[self.labels == label].bincount(minlength=len(distinct))
            columns.append(_ranked(of_class, index.bincount(minlength=len(distinct)) - of_class, False))
        return torch.stack(columns, 1)

    def reduced(self) -> Self:
        return self._without_scores(self.bins[..., :0], self.values())

    def portable(self) -> Self:
        """The values, with the bins from which pooled values are made; only the values of a reduced state."""
        if not (len(self.scores) or self.bins.shape[2]):
            return self
        # A power of two, because `_coarser` needs a divisor of BINS.
        count = min(BINS, 1 << max(0, int(math.log2(_PORTABLE_COUNTS / self.bins.shape[1]))))
        return self._without_scores(_coarser(self.binned().bins, count), self.values())

    def check(self, total: int) -> None:
        auroc, precision, _, samples = self.by_class
        shares = torch.cat([auroc, precision])
        shares = shares[~shares.isnan()]
        bins_fit = not self.bins.shape[2] or bool((self.bins.sum((0, 2)) == total).all())
        if not (bins_fit and bool((self.bins >= 0).all()) and bool(((shares >= 0) & (shares <= 1 + 1e-9)).all())):
            raise ValueError(f"bins or values of scores that {total} samples cannot have")
        if float(samples.sum()) != total:
            raise ValueError(f"scores of {float(samples.sum()):g} samples; need those of {total}")

    def compute(self) -> float:
        return mean_of_defined(self.values()[0])

    def details(self) -> Mapping[str, Any]:
        """AUROC by class, the mean weighted by samples, the number of classes in the mean, and the bound, if binned."""
        values = self.values()
        details, bound = _details(values[0], values[3]), values[2][~values[2].isnan()]
        if len(bound):
            details |= {"note": f"binned, off by at most {float(bound.max()):.2g}", "bound": plain(values[2])}
        return details

    def _without_scores(self, bins: Tensor, by_class: Tensor) -> Self:
        return type(self)(self.scores[:0], self.labels[:0], bins, by_class, self.limit)

    def _within_limit(self) -> Self:
        """The same state, in bins if its scores take more memory than they may."""
        return self if 4 * self.scores.numel() <= self.limit else self.binned()


@METRICS.register("auroc")
class Auroc(ClassScores):
    """The area under the ROC curve, one class against all others, as a mean over classes.

    It is the share of pairs, of a sample of the class and one of another, in which the first has the higher score;
    equal scores count half. A class needs a sample of either kind.

    Example:
        >>> import torch
        >>> logits, labels = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 1])
        >>> Auroc.new(Predictions(logits, labels)).compute()
        1.0
    """

    __slots__ = ()


@METRICS.register("average_precision")
class AveragePrecision(ClassScores):
    """The mean over classes of the area under precision over recall in steps, one class against all others."""

    __slots__ = ()

    def compute(self) -> float:
        return mean_of_defined(self.values()[1])

    def details(self) -> Mapping[str, Any]:
        """Average precision by class, the mean weighted by samples, and the number of classes in the mean."""
        values = self.values()
        return _details(values[1], values[3]) | ({"note": "binned"} if bool((~values[2].isnan()).any()) else {})


def _ranked(of_class: Tensor, others: Tensor, binned: bool) -> Tensor:
    """AUROC, average precision, bound and samples [4] float64 of one class, from its samples and all others [T] at
    rising scores; samples of one entry are tied."""
    positives, negatives = of_class.double(), others.double()
    samples, pairs = positives.sum(), positives.sum() * negatives.sum()
    if not float(pairs):
        return torch.stack([*_undefined(1)[:3, 0], samples])
    # Ties count half: of the negatives at the same score, one half counts as below.
    below = negatives.cumsum(0) - negatives / 2
    true, false = (counts.flip(0).cumsum(0) for counts in (positives, negatives))
    # At scores above all samples nothing is predicted yet: 0 / 1 instead of 0 / 0.
    precision = true / (true + false).clamp(min=1)
    average = (positives.flip(0) * precision).sum() / samples
    bound = (positives * negatives).sum() / 2 / pairs if binned else torch.tensor(math.nan, dtype=torch.float64)
    return torch.stack([(positives * below).sum() / pairs, average, bound, samples])


def _details(values: Tensor, samples: Tensor) -> dict[str, Any]:
    weighted = weighted_mean(values, samples)
    return {
        "by_class": plain(values),
        "weighted": None if math.isnan(weighted) else weighted,
        "classes": int((~values.isnan()).sum()),
    }


def _undefined(classes: int) -> Tensor:
    return torch.full((4, classes), math.nan, dtype=torch.float64)


def _coarser(bins: Tensor, count: int) -> Tensor:
    """The same counts [2, C, B] in `count` bins, a divisor of B."""
    return bins.view(*bins.shape[:2], count, -1).sum(3)
