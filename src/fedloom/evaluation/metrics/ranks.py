"""Metrics of ranks: AUROC, average precision, and operating points of the ROC curve, one class against all others.

They rank samples by the log odds of a class, because float32 probabilities of a confident net are all 0 or 1 and tie.
A class needs samples of both kinds, or it is left out of the means. scikit-learn agrees with all values."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedloom.evaluation.metric import METRICS, AtLevel, Metric, Predictions
from fedloom.evaluation.metrics.by_class import mean_of_defined, plain, weighted_mean

BINS = 4096
_LARGEST_ASINH = 12.0  # bins cover log odds up to sinh(12), some 80,000; the outer bins have those beyond
_LARGEST_SCORE = 1e15  # of a threshold
_RISKS = (torch.arange(1, 100).double() / 100).logit()  # of a decision curve
_PORTABLE_COUNTS = 1 << 16  # bins of all classes together that leave a node
_FINE = 0.001  # bound of the error of an AUROC, above which bins are cut finer in a second test


@dataclass(frozen=True, slots=True, eq=False)
class ClassScores(Metric):
    """The scores of one model: of each sample, or counted in bins, or only the values that they gave.

    Above a limit of memory (`evaluation.scores_mib`) the scores are counted in bins that are equal on the scale of
    asinh. Within a bin every pair counts half, so the AUROC is off by at most half the share of pairs that share a
    bin. That bound is reported. If it is above 0.001, a second test cuts each bin by its share of the samples.

    Attributes:
        scores: log odds [n, C] float64, as `log_odds` gives them; no rows where they are counted.
        labels: true classes [n] int64, or several labels [n, L], whose scores are their logits.
        bins: numbers of samples of each class and of all others by score [2, C, B] int64; B = 0 where there are none.
        pieces: equal parts of each of K equal bins [C, K] int64, which are the bins; K = 0 where bins are not cut.
        by_class: AUROC, average precision, the bound of the AUROC's error (NaN: exact) and samples of each class, then
            the value and the bound of each operating point [4 + 2 P, C] float64; [.., 0] where they are not yet
            computed.
        limit: bytes that scores may take.
        points: names of the P operating points, with blanks between them."""

    scores: Tensor
    labels: Tensor
    bins: Tensor
    pieces: Tensor
    by_class: Tensor
    limit: int
    points: str
    shared, needs_scores, pools_models = "class_scores", True, False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        return cls.new_for(predictions, (cls,))

    @classmethod
    def new_for(cls, predictions: Predictions, kinds: Iterable[type[Metric]]) -> Self:
        logits, labels = predictions.logits.cpu().double(), predictions.labels.cpu()
        scores = logits.nan_to_num(-math.inf, math.inf, -math.inf) if labels.dim() == 2 else log_odds(logits)
        bins = torch.zeros(2, scores.shape[1], 0, dtype=torch.int64)
        points = " ".join(kind.name for kind in kinds if issubclass(kind, OperatingPoint))
        state = cls(scores, labels, bins, bins[0], _undefined(points), predictions.scores_bytes, points)
        return state._within_limit() if predictions.bins is None else state.binned(pieces=_pieces(predictions.bins))

    def merge(self, further: Self) -> Self:
        if not (self.bins.shape[2] or further.bins.shape[2]):
            scores = torch.cat([self.scores, further.scores])
            labels = torch.cat([self.labels, further.labels])
            return replace(self, scores=scores, labels=labels, by_class=_undefined(self.points))._within_limit()
        first, second = self.binned(), further.binned()
        if first.pieces.shape[1] and first.pieces.equal(second.pieces):
            return first._without_scores(first.bins + second.bins, _undefined(self.points))
        equal = first._equal_bins(), second._equal_bins()
        count = min(bins.shape[2] for bins in equal)
        bins = _coarser(equal[0], count) + _coarser(equal[1], count)
        return replace(first, pieces=self.pieces[:, :0])._without_scores(bins, _undefined(self.points))

    def binned(self, bins: int = BINS, pieces: Tensor | None = None) -> Self:
        """The same scores, counted in equal bins, or in `pieces` [C, K] of K equal ones."""
        if self.bins.shape[2]:
            return self
        classes = self.scores.shape[1]
        index = bin_numbers(self.scores, bins if pieces is None else pieces.shape[1], pieces)
        # Each class gets its own range of bins, so one bincount counts all classes.
        bins = bins if pieces is None else int(pieces.sum(1).max())
        index += torch.arange(classes) * bins
        several, recorded = self.labels.dim() == 2, index[self.labels >= 0]
        held = index[self.labels == 1] if several else index.gather(1, self.labels[:, None])
        of_class = held.flatten().bincount(minlength=classes * bins)
        others = recorded.flatten().bincount(minlength=classes * bins) - of_class
        state = self if pieces is None else replace(self, pieces=pieces)
        return state._without_scores(torch.stack([of_class, others]).view(2, classes, bins), self.by_class)

    def _equal_bins(self) -> Tensor:
        """The counts [2, C, K] in equal bins."""
        if not self.pieces.shape[1]:
            return self.bins
        ends = pad(self.pieces.cumsum(1), (1, 0)).expand(2, -1, -1)
        return pad(self.bins.cumsum(2), (1, 0)).gather(2, ends).diff()

    @property
    def needs_second_test(self) -> bool:
        """Whether the bound of the error is so large that a second test shall count the scores in finer bins."""
        return bool((self.values()[2] > _FINE).any())

    def values(self) -> Tensor:
        """The same as `by_class`, computed where it is not."""
        if self.by_class.shape[1]:
            return self.by_class
        binned, classes = bool(self.bins.shape[2]), range(self.bins.shape[1])
        return torch.stack([self._column(*self.counts(label)[1:], binned) for label in classes], 1)

    def counts(self, label: int) -> tuple[Tensor, Tensor, Tensor]:
        """Distinct scores of a class [T] float64, rising, or the middle of each bin, and the samples of the class and
        of all others that have them [T] int64."""
        if self.bins.shape[2]:
            edges, bins = self._edges(label)
            return _scores_of_bins((edges[1:] + edges[:-1]) / 2, bins), *self.bins[:, label, : len(edges) - 1]
        held = self.labels[:, label] if self.labels.dim() == 2 else (self.labels == label).long()
        distinct, index = torch.unique(self.scores[held >= 0, label], return_inverse=True)
        of_class = index[held[held >= 0] == 1].bincount(minlength=len(distinct))
        return distinct, of_class, index.bincount(minlength=len(distinct)) - of_class

    def cuts(self, label: int) -> tuple[Tensor, Tensor, Tensor]:
        """Thresholds on the score of a class, rising [T + 1]: between neighbours and 1 beyond both ends, or the edges
        of the bins; and the samples of the class and of all others at or above each [T + 1] float64."""
        scores, of_class, others = self.counts(label)
        if self.bins.shape[2]:
            thresholds = _scores_of_bins(*self._edges(label))
        else:
            scores = scores.clamp(-_LARGEST_SCORE, _LARGEST_SCORE)  # 1 more is another number, and JSON has it
            thresholds = torch.cat([scores[:1] - 1, (scores[1:] + scores[:-1]) / 2, scores[-1:] + 1])
        hits, alarms = (torch.cat([n.double().flip(0).cumsum(0).flip(0), torch.zeros(1)]) for n in (of_class, others))
        return thresholds, hits, alarms

    def _edges(self, label: int) -> tuple[Tensor, int]:
        """The edges of the bins of a class on a scale from 0 to K, and K."""
        if not self.pieces.shape[1]:
            return torch.arange(self.bins.shape[2] + 1).double(), self.bins.shape[2]
        pieces, bins = self.pieces[label], self.pieces.shape[1]
        whole = torch.arange(bins).repeat_interleave(pieces)
        part = torch.arange(len(whole)) - (pieces.cumsum(0) - pieces)[whole]
        return torch.cat([whole + part.double() / pieces[whole], torch.tensor([float(bins)])]), bins

    def curve(self, label: int) -> list[list[float]]:
        """Rows of a threshold, and the samples of the class and of all others at or above it, at falling thresholds.
        They are those of the decision curve (risks of 1 to 99 %), and some 100 that a ROC curve needs."""
        scores, (thresholds, hits, alarms) = self.counts(label)[0], self.cuts(label)
        above = torch.searchsorted(scores, _RISKS)
        at_risks = torch.stack([_RISKS, hits[above], alarms[above]], 1)
        # one threshold for each 2 % of the class or of the others
        part = ((hits / hits[0].clamp(min=1) + alarms / alarms[0].clamp(min=1)) * 50).ceil()
        at_parts = torch.stack([thresholds, hits, alarms], 1)[part.diff(prepend=part[:1] + 1) < 0]
        rows: list[list[float]] = torch.cat([at_risks, at_parts]).tolist()
        return sorted(rows, reverse=True)

    def weighted(self, weight: float) -> Self:
        state = self.binned()
        return state._without_scores(weight * state.bins.double(), _undefined(self.points))

    def reduced(self) -> Self:
        return replace(self, pieces=self.pieces[:, :0])._without_scores(self.bins[..., :0], self.values())

    def portable(self) -> Self:
        """The values, with the bins from which pooled values are made; only the values of a reduced state."""
        if not (len(self.scores) or self.bins.shape[2]):
            return self
        if self.pieces.shape[1]:
            return self._without_scores(self.bins, self.values())
        # A power of two, because `_coarser` needs a divisor of BINS.
        count = min(BINS, 1 << max(0, int(math.log2(_PORTABLE_COUNTS / self.bins.shape[1]))))
        return self._without_scores(_coarser(self.binned().bins, count), self.values())

    def check(self, total: int) -> None:
        samples, shares = self.by_class[3], torch.cat([self.by_class[:2], self.by_class[4:]])
        shares = shares[~shares.isnan()]
        several, binned = self.labels.dim() == 2, self.bins.sum((0, 2))
        bins_fit = not self.bins.shape[2] or bool((binned <= total if several else binned == total).all())
        bins_fit &= bool((self.pieces > 0).all()) and int(self.pieces.sum(1).max()) in (0, self.bins.shape[2])
        if not (bins_fit and bool((self.bins >= 0).all()) and bool(((shares >= 0) & (shares <= 1 + 1e-9)).all())):
            raise ValueError(f"bins or values of scores that {total} samples cannot have")
        if float(samples.max()) > total or (not several and float(samples.sum()) != total):
            raise ValueError(f"scores of {float(samples.sum()):g} samples; need those of {total}")

    def of_metric(self) -> Tensor:
        """The values of the metric by class, and the bounds of their errors [2, C]."""
        return self.values()[[0, 2]]

    def compute(self) -> float:
        return mean_of_defined(self.of_metric()[0])

    def details(self) -> Mapping[str, Any]:
        values, bounds = self.of_metric()
        details, bound = _details(values, self.values()[3]), bounds[~bounds.isnan()]
        if len(bound):
            details |= {"note": f"binned, off by at most {float(bound.max()):.2g}", "bound": plain(bounds)}
        return details

    def _column(self, of_class: Tensor, others: Tensor, binned: bool) -> Tensor:
        """The column of `by_class` of a class, from its samples and all others [T] at rising scores; those of an entry
        tie."""
        positives, negatives = of_class.double(), others.double()
        if not float(positives.sum() * negatives.sum()):
            column = _undefined(self.points, 1)[:, 0]
            column[3] = positives.sum()
            return column
        points = [_operating_point(name, positives, negatives) for name in self.points.split()]
        columns = torch.stack([*_ranked(positives, negatives), *(value for point in points for value in point)])
        if not binned:
            columns[[2, *range(5, len(columns), 2)]] = math.nan
        return columns

    def _without_scores(self, bins: Tensor, by_class: Tensor) -> Self:
        return replace(self, scores=self.scores[:0], labels=self.labels[:0], bins=bins, by_class=by_class)

    def _within_limit(self) -> Self:
        """The same state, in bins if its scores take more memory than they may."""
        return self if 8 * self.scores.numel() <= self.limit else self.binned()


@METRICS.register("auroc")
class Auroc(ClassScores):
    """The area under the ROC curve, one class against all others, as a mean over classes.
    It is the share of pairs, of a sample of the class and one of another, in which the first has the higher score;
    equal scores count half. A class needs a sample of either kind."""

    multi_label: ClassVar[bool] = True

    def details(self) -> Mapping[str, Any]:
        two = self.bins.shape[1] == 2 and self.labels.dim() == 1
        return {**super().details(), **({"curves": [self.curve(0), self.curve(1)]} if two else {})}


@METRICS.register("average_precision")
class AveragePrecision(ClassScores):
    """The mean over classes of the area under precision over recall in steps, one class against all others."""

    multi_label: ClassVar[bool] = True

    def of_metric(self) -> Tensor:
        return self.values()[[1, 2]]

    def details(self) -> Mapping[str, Any]:
        details = dict(super().details())
        return details | {"note": "binned"} if details.pop("bound", None) else details


class OperatingPoint(ClassScores, metaclass=AtLevel):
    """The highest value of one share where another is at least the level in the name, by class, and their mean.
    A sample is positive if its score reaches a threshold. The threshold is the best one for the tested samples, chosen
    for each class, so the value is optimistic where they are few."""

    multi_label, smooth = True, False
    name: ClassVar[str]

    def of_metric(self) -> Tensor:
        points = self.points.split()
        if self.name not in points:  # the state is that of others
            return _undefined("", self.by_class.shape[1])[:2]
        first = 4 + 2 * points.index(self.name)
        return self.values()[first : first + 2]

    def details(self) -> Mapping[str, Any]:
        return super().details() if self.name in self.points.split() else {}


def _ranked(positives: Tensor, negatives: Tensor) -> tuple[Tensor, ...]:
    """AUROC, average precision, bound and samples of one class, from counts [T] float64 at rising scores."""
    samples, pairs = positives.sum(), positives.sum() * negatives.sum()
    # Ties count half: of the negatives at the same score, one half counts as below.
    below = negatives.cumsum(0) - negatives / 2
    true, false = (counts.flip(0).cumsum(0) for counts in (positives, negatives))
    # At scores above all samples nothing is predicted yet: 0 / 1 instead of 0 / 0.
    precision = true / (true + false).clamp(min=1)
    average = (positives.flip(0) * precision).sum() / samples
    return (positives * below).sum() / pairs, average, (positives * negatives).sum() / 2 / pairs, samples


def _operating_point(name: str, positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """The value of an operating point and the bound of its error, from counts [T] float64 at rising scores."""
    if name.startswith("specificity"):  # the same with both kinds and the order of scores exchanged
        positives, negatives = negatives.flip(0), positives.flip(0)
    hits, false_alarms = (counts.flip(0).cumsum(0) for counts in (positives, negatives))
    # Rounding, as in (1 - 0.9) * 10 = 0.99..., shall not lose a sample.
    allowed = false_alarms <= math.floor((1 - float(name.partition("=")[2])) * float(negatives.sum()) + 1e-9)
    best = hits[allowed].amax() if bool(allowed.any()) else torch.zeros_like(hits[0])
    # The threshold that is best for unbinned scores may lie within the first bin that has too many false alarms.
    within = best if bool(allowed.all()) else hits[~allowed].amin()
    return best / positives.sum(), (within - best) / positives.sum()


def log_odds(logits: Tensor) -> Tensor:
    """The score of each class, z_c - log sum exp of the others' logits [n, C] float64; -inf in rows with a NaN.
    The last bits matter, because a tie counts half: samples tie if their logits differ by the order of the other
    classes, or by a constant that float64 subtracts exactly."""
    shifted = _shifted(logits, logits.amax(1, keepdim=True))
    if logits.shape[1] <= 2:
        scores = shifted - shifted.flip(1)
    else:
        falling = shifted.sort(1, descending=True).values
        second, others = falling[:, 1:2], falling[:, 1:]
        # The sum over all classes less one of them loses digits only if that one is the highest, nearly all of the sum.
        without = (_sum(falling.exp()) - shifted.exp()).log()
        without_highest = second + _sum(_shifted(others, second).exp()).log()
        scores = shifted - torch.where(shifted == 0, without_highest, without)
    return scores.nan_to_num(-math.inf, math.inf, -math.inf)


def _shifted(logits: Tensor, highest: Tensor) -> Tensor:
    """Logits less the highest one, 0 for itself, which may be infinite."""
    return torch.where(logits == highest, 0.0, logits - highest)


def _sum(values: Tensor) -> Tensor:
    """The sum of each row [n, 1], added in order, so that its bits do not depend on the number of rows."""
    return values.cumsum(1)[:, -1:]


def _details(values: Tensor, samples: Tensor) -> dict[str, Any]:
    weighted = weighted_mean(values, samples)
    return {
        "by_class": plain(values),
        "weighted": None if math.isnan(weighted) else weighted,
        "set": "classes that some of the samples have, and others not",
        "classes": int((~values.isnan()).sum()),
    }


def _undefined(points: str, classes: int = 0) -> Tensor:
    return torch.full((4 + 2 * len(points.split()), classes), math.nan, dtype=torch.float64)


def _scores_of_bins(places: Tensor, bins: int) -> Tensor:
    """The log odds at places 0 to `bins` on the scale of the bins."""
    return (places.double() * (2 * _LARGEST_ASINH / bins) - _LARGEST_ASINH).sinh()


def bin_numbers(scores: Tensor, bins: int, pieces: Tensor | None = None) -> Tensor:
    """The bin of each score [n, C] int64, of equal `bins` or their `pieces` [C, bins]."""
    place = (scores.asinh() + _LARGEST_ASINH) / (2 * _LARGEST_ASINH) * bins
    index = place.floor().clamp(0, bins - 1).long()
    if pieces is None:
        return index
    cut, first = (of.T.gather(0, index) for of in (pieces, pieces.cumsum(1) - pieces))
    return first + ((place - index) * cut).floor().clamp(min=0).minimum(cut - 1.0).long()


def _pieces(bins: Tensor) -> Tensor:
    """How many parts each of K equal bins is cut into, by its share of the samples [C, K], from counts [2, C, K]."""
    samples = bins.sum(0).double()
    return (bins.shape[2] * samples / samples.sum(1, keepdim=True)).round().clamp(min=1).long()


def _coarser(bins: Tensor, count: int) -> Tensor:
    """The same counts [2, C, B] in `count` bins, a divisor of B."""
    return bins.view(*bins.shape[:2], count, -1).sum(3)
