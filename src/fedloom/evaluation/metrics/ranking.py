"""Metrics from the ranks of scores, one class against all others: AUROC and average precision.

A score is softmax of the logits in float64, kept as float32. Both metrics need all scores. Above a limit of memory
(`evaluation.scores_mib`) the scores are counted in equal bins instead. Within a bin every pair counts half, so the
AUROC is off by at most half the share of pairs that share a bin. That bound is reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedloom.evaluation.metric import METRICS, Metric, Predictions
from fedloom.evaluation.metrics.class_counts import mean_of_defined, plain, weighted_mean

BINS = 4096
_PORTABLE_COUNTS = 1 << 16  # bins of all classes together that leave a node


@dataclass(frozen=True, slots=True, eq=False)
class ClassScores(Metric):
    """The scores of one model: of each sample, or counted in bins, or only the values that they gave.

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
        """The state of one batch. Scores that are no numbers, of a model that diverged, are tied below all others."""
        scores, labels = predictions.probabilities.float().nan_to_num(0.0), predictions.labels.cpu()
        bins = torch.zeros(2, scores.shape[1], 0, dtype=torch.int64)
        return cls(scores, labels, bins, _values(0), predictions.scores_bytes)._within_limit()

    def merge(self, further: Self) -> Self:
        """The scores of both, or bins if one has bins or both are too many."""
        if not (self.bins.shape[2] or further.bins.shape[2]):
            scores = torch.cat([self.scores, further.scores])
            labels = torch.cat([self.labels, further.labels])
            return type(self)(scores, labels, self.bins, _values(0), self.limit)._within_limit()
        first, second = self.binned(), further.binned()
        count = min(first.bins.shape[2], second.bins.shape[2])
        bins = _coarser(first.bins, count) + _coarser(second.bins, count)
        return type(self)(first.scores, first.labels, bins, _values(0), self.limit)

    def binned(self, bins: int = BINS) -> Self:
        """The same scores, counted in bins."""
        if self.bins.shape[2]:
            return self
        classes = self.scores.shape[1]
        index = (self.scores.double() * bins).floor().long().clamp(0, bins - 1)
        index += torch.arange(classes) * bins
        of_class = index.gather(1, self.labels[:, None]).flatten().bincount(minlength=classes * bins)
        others = index.flatten().bincount(minlength=classes * bins) - of_class
        counts = torch.stack([of_class, others]).view(2, classes, bins)
        return type(self)(self.scores[:0], self.labels[:0], counts, self.by_class, self.limit)

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
        """The values alone."""
        return type(self)(self.scores[:0], self.labels[:0], self.bins[..., :0], self.values(), self.limit)

    def portable(self) -> Self:
        """The values, with the bins from which pooled values are made; only the values of a reduced state."""
        values = self.values()
        if not (len(self.scores) or self.bins.shape[2]):
            return self
        count = min(BINS, 1 << max(0, int(math.log2(_PORTABLE_COUNTS / self.bins.shape[1]))))
        bins = _coarser(self.binned().bins, count)
        return type(self)(self.scores[:0], self.labels[:0], bins, values, self.limit)

    def check(self, total: int) -> None:
        """Raise `ValueError` for values or bins that `total` samples cannot have."""
        auroc, precision, _, samples = self.by_class
        shares = torch.cat([auroc, precision])
        shares = shares[~shares.isnan()]
        bins_fit = not self.bins.shape[2] or bool((self.bins.sum((0, 2)) == total).all())
        if not (bins_fit and bool((self.bins >= 0).all()) and bool(((shares >= 0) & (shares <= 1 + 1e-9)).all())):
            raise ValueError(f"bins or values of scores that {total} samples cannot have")
        if float(samples.sum()) != total:
            raise ValueError(f"scores of {float(samples.sum()):g} samples; need those of {total}")

    def compute(self) -> float:
        """The mean AUROC over the classes where it is defined."""
        return mean_of_defined(self.values()[0])

    def details(self) -> Mapping[str, Any]:
        """AUROC by class, the mean weighted by samples, the number of classes in the mean, and the bound, if binned."""
        values = self.values()
        details, bound = _details(values[0], values[3]), values[2][~values[2].isnan()]
        if len(bound):
            details |= {"note": f"binned, off by at most {float(bound.max()):.2g}", "bound": plain(values[2])}
        return details

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
    """The area under the curve of precision over recall in steps, one class against all others, as a mean over classes.

    Example:
        >>> import torch
        >>> logits, labels = torch.tensor([[0.0, 1.0], [0.0, 3.0], [0.0, 2.0]]), torch.tensor([0, 1, 1])
        >>> AveragePrecision.new(Predictions(logits, labels)).compute()
        1.0
    """

    __slots__ = ()

    def compute(self) -> float:
        """The mean average precision over the classes where it is defined."""
        return mean_of_defined(self.values()[1])

    def details(self) -> Mapping[str, Any]:
        """Average precision by class, the mean weighted by samples, and the number of classes in the mean."""
        values = self.values()
        return _details(values[1], values[3]) | ({"note": "binned"} if bool((~values[2].isnan()).any()) else {})


def _ranked(of_class: Tensor, others: Tensor, binned: bool) -> Tensor:
    """AUROC, average precision, bound and samples [4] float64 of one class, from its samples and all others by score.

    of_class, others: numbers of samples [T] at rising scores. Samples of one entry are tied.
    """
    positives, negatives = of_class.double(), others.double()
    samples, pairs = positives.sum(), positives.sum() * negatives.sum()
    if not float(pairs):
        return torch.stack([*_values(1)[:3, 0], samples])
    below = negatives.cumsum(0) - negatives / 2
    true, false = (counts.flip(0).cumsum(0) for counts in (positives, negatives))
    precision = true / (true + false).clamp(min=1)
    average = (positives.flip(0) * precision).sum() / samples
    bound = (positives * negatives).sum() / 2 / pairs if binned else torch.tensor(math.nan, dtype=torch.float64)
    return torch.stack([(positives * below).sum() / pairs, average, bound, samples])


def _details(values: Tensor, samples: Tensor) -> dict[str, Any]:
    return {
        "by_class": plain(values),
        "weighted": none_if_nan(weighted_mean(values, samples)),
        "classes": int((~values.isnan()).sum()),
    }


def none_if_nan(value: float) -> float | None:
    """The value, None for NaN."""
    return None if math.isnan(value) else value


def _values(classes: int) -> Tensor:
    return torch.full((4, classes), math.nan, dtype=torch.float64)


def _coarser(bins: Tensor, count: int) -> Tensor:
    """The same counts [2, C, B] in `count` bins, a divisor of B."""
    return bins.view(*bins.shape[:2], count, -1).sum(3)
