"""Metrics of probabilities: calibration (errors, regression), the Brier score, log-likelihood and thresholds.

The expected calibration error (Guo et al. 2017, arXiv 1706.04599) compares the confidence max_c p_c with the share of
correct predictions, in 15 bins ((b - 1) / 15, b / 15]. It grows where samples are few, so it is reported on all samples
together and not by client. Log odds of a class count as risks; in a bin, as at its middle, off by 0.3 % at most."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedloom.evaluation.metric import METRICS, Metric, MetricStates, Predictions
from fedloom.evaluation.metrics.basic import MeanOverSamples, NatsOverSamples
from fedloom.evaluation.metrics.by_class import mean_of_defined
from fedloom.evaluation.metrics.ranks import ClassScores

BINS = 15
_FINE_BINS = 4096


class OfConfidence(Metric):
    """A calibration error, which is reported on all samples together."""

    over = "samples"
    detailed, needs_scores, may_diverge, higher_is_better = False, True, True, False
    smooth = False  # a sum of absolute values


@METRICS.register("ece")
@dataclass(frozen=True, slots=True, eq=False)
class CalibrationError(OfConfidence):
    """The expected calibration error of the predicted class, with 15 bins of equal width, on all samples together.

    sums: samples, confidences and correct predictions of each bin [15, 3] float64.

    Example:
        >>> import torch
        >>> logits, labels = torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])
        >>> round(CalibrationError.new(Predictions(logits, labels)).compute(), 4)
        0.25
    """

    sums: Tensor

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        return cls(sums_in_bins(*confidences(predictions), BINS))

    def compute(self) -> float:
        samples, confidence, correct = self.sums.unbind(1)
        # Without samples 0 / 0 of tensors is NaN and no error.
        return float((confidence - correct).abs().sum() / samples.sum())

    def details(self) -> Mapping[str, Any]:
        samples, confidence, correct = self.sums.unbind(1)
        used = samples > 0
        rows = torch.stack([samples, confidence / samples, correct / samples], 1)
        return {"bins": [row if use else None for row, use in zip(rows.tolist(), used.tolist(), strict=True)]}

    def check(self, total: int) -> None:
        check_confidence_sums(self.sums, total)


@METRICS.register("adaptive_ece")
@dataclass(frozen=True, slots=True, eq=False)
class AdaptiveCalibrationError(OfConfidence):
    """The calibration error with 15 bins of equal numbers of samples, on all samples together.
    Samples of equal confidence share a bin, so the order of samples does not matter. Above the limit of memory,
    confidences are first summed in 4,096 bins of equal width.
    samples: confidence and correctness of each [n, 2] float64, without rows where they are summed. sums: as for `ece`
    [B, 3], or no rows. limit: bytes that confidences may take."""

    samples: Tensor
    sums: Tensor
    limit: int

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        samples = torch.stack(confidences(predictions), 1)
        return cls(samples, torch.zeros(0, 3, dtype=torch.float64), predictions.scores_bytes)._within_limit()

    def merge(self, further: Self) -> Self:
        if not (len(self.sums) or len(further.sums)):
            return type(self)(torch.cat([self.samples, further.samples]), self.sums, self.limit)._within_limit()
        return type(self)(self.samples[:0], self._in_bins() + further._in_bins(), self.limit)

    def reduced(self) -> Self:
        """Sums of a client that has more samples than fine bins, else its confidences."""
        return self if len(self.samples) <= _FINE_BINS else self.portable()

    def portable(self) -> Self:
        return type(self)(self.samples[:0], self._in_bins(), self.limit)

    def check(self, total: int) -> None:
        check_confidence_sums(self.sums, total)

    def compute(self) -> float:
        if len(self.sums):
            counts, confidence, correct = self.sums[self.sums[:, 0] > 0].unbind(1)
        else:
            distinct, index, numbers = torch.unique(self.samples[:, 0], return_inverse=True, return_counts=True)
            counts, confidence = numbers.double(), distinct * numbers
            correct = torch.zeros_like(distinct).index_add_(0, index, self.samples[:, 1])
        total = float(counts.sum())
        if not total:
            return math.nan
        middle = counts.cumsum(0) - counts + (counts + 1) / 2  # rank from 1, the mean of tied ones
        bins = (BINS * (middle - 0.5) / total).floor().long().clamp(max=BINS - 1)
        # Signed gaps cancel within a bin; only their sum counts as the error of the bin.
        gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, bins, confidence - correct)
        return float(gaps.abs().sum()) / total

    def details(self) -> Mapping[str, Any]:
        return {"note": "binned"} if len(self.sums) else {}

    def _in_bins(self) -> Tensor:
        return self.sums if len(self.sums) else sums_in_bins(self.samples[:, 0], self.samples[:, 1], _FINE_BINS)

    def _within_limit(self) -> Self:
        return self if 16 * len(self.samples) <= self.limit else self.portable()


@METRICS.register("brier")
class Brier(MeanOverSamples):
    """The Brier score: the mean squared distance of the probabilities to the true class, from 0 to 2 (Brier 1950)."""

    needs_scores, may_diverge, higher_is_better = True, True, False

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        p = predictions.probabilities
        true = p.gather(1, predictions.labels.cpu()[:, None])
        # sum_c (p_c - 1[y = c])^2 without a one-hot matrix
        return cls(float((p.square().sum() - true.square().sum()) + (1 - true).square().sum()), len(p))

    def check(self, total: int) -> None:
        super().check(total)
        # Rounding may leave the sum slightly outside its range.
        if self.value_sum < -1e-9 or self.value_sum > 2 * total * (1 + 1e-9):
            raise ValueError(f"a Brier score with the sum {self.value_sum:g} over {total} samples")


@METRICS.register("nll")
class NegativeLogLikelihood(NatsOverSamples):
    """The mean of -log p of the true class, in nats and float64. `loss` is the same in the model's precision."""

    needs_scores: ClassVar[bool] = True

    @classmethod
    def new(cls, predictions: Predictions) -> Self:
        labels = predictions.labels.cpu()
        return cls(-float(predictions.log_probabilities.gather(1, labels[:, None]).sum()), len(labels))


def confidences(predictions: Predictions) -> tuple[Tensor, Tensor]:
    """The probability of the predicted class, and whether it is the true one, of each sample [B] float64."""
    return predictions.probabilities.amax(1), (predictions.predicted == predictions.labels).cpu().double()


def sums_in_bins(confidence: Tensor, correct: Tensor, bins: int) -> Tensor:
    """Samples, confidences and correct predictions in bins ((b - 1) / bins, b / bins] [bins, 3] float64."""
    # a confidence on an edge, such as 1 / C, may be off in its last bits
    index = (confidence * bins - 1e-9).nan_to_num(1).ceil().long().clamp(1, bins) - 1
    weights = (None, confidence, correct)
    return torch.stack([index.bincount(weight, minlength=bins).double() for weight in weights], 1)


def check_confidence_sums(sums: Tensor, total: int) -> None:
    """Raise `ValueError` for sums that `total` samples cannot have."""
    samples, confidence, correct = sums.unbind(1)
    outside = bool((samples < 0).any() or (correct < 0).any() or (correct > samples).any())
    outside |= bool((confidence < -1e-9).any() or (confidence > samples + 1e-9).any())
    if float(samples.sum()) != total or outside:
        raise ValueError(f"sums of confidences that {total} samples cannot have")


DECISION = ("decision_sensitivity", "decision_specificity", "decision_ppv", "decision_npv")


@METRICS.register("calibration_slope")
class CalibrationSlope(ClassScores):
    """The slope of the logistic regression of a class on its log odds (Cox 1958), on all samples together.
    Below 1 the model is overconfident. Of two classes the value is that of the second, of more a mean. A class that a
    threshold separates from the others has none."""

    over = "samples"
    detailed, on_request, higher_is_better = False, True, None
    place: ClassVar[int] = 1  # in what `calibration` returns

    def compute(self) -> float:
        if self.bins.shape[1] == 2:
            return calibration(*self.counts(1))[self.place]
        return mean_of_defined(torch.tensor(self._of_classes(), dtype=torch.float64))

    def details(self) -> Mapping[str, Any]:
        parts = {"brier_parts": _brier_parts(*self.counts(1))} if self.bins.shape[1] == 2 else {}
        return {"by_class": self._of_classes()} | parts | ({"note": "binned"} if self.bins.shape[2] else {})

    def _of_classes(self) -> list[float]:
        return [calibration(*self.counts(label))[self.place] for label in range(self.bins.shape[1])]


def calibration(scores: Tensor, of_class: Tensor, others: Tensor) -> tuple[float, float, float]:
    """Intercept and slope of a logistic regression on distinct `scores` [T], and the intercept at slope 1, by counts of
    samples of the class and of others [T]; NaN where there is none."""
    hits, samples = of_class.double(), (of_class + others).double()
    total, positives, negatives = float(samples.sum()), scores[of_class > 0], scores[others > 0]
    if not len(positives) or not len(negatives) or not bool(scores.isfinite().all()):
        return math.nan, math.nan, math.nan
    from scipy.optimize import brentq  # too slow to import where nobody asks for calibration

    def excess(shift: float) -> float:
        value = float((samples * (shift + scores).sigmoid() - hits).sum())
        return value if abs(value) > 1e-15 * total else 0.0  # the rest is rounding

    ends = -50 - float(scores.max()), 50 - float(scores.min())
    in_the_large = float(brentq(excess, *ends, xtol=1e-13, maxiter=1000))
    if positives.min() >= negatives.max() or negatives.min() >= positives.max():  # the likelihood has no maximum
        return math.nan, math.nan, in_the_large
    mean = (samples * scores).sum() / total
    spread = ((samples * (scores - mean).square()).sum() / total).sqrt()
    x = torch.stack([torch.ones_like(scores), (scores - mean) / spread], 1)
    fit, step, best = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64), -math.inf
    for k in range(200):  # Newton's method, with half the step where the likelihood falls
        if k and float(step.abs().max()) <= 1e-12 * (1 + float(fit.abs().max())):
            break
        z = x @ (fit + step)
        likelihood = float((hits * z - samples * softplus(z)).sum())
        if likelihood < best:
            step = step / 2
            continue
        fit, best, p = fit + step, likelihood, z.sigmoid()
        step = torch.linalg.pinv((x * (samples * p * (1 - p))[:, None]).T @ x) @ x.T @ (hits - samples * p)
    slope = float(fit[1] / spread)
    return float(fit[0]) - slope * float(mean), slope, in_the_large


def _brier_parts(scores: Tensor, of_class: Tensor, others: Tensor) -> dict[str, float]:
    """The parts of mean (p - y)² by ten bins of p: reliability - resolution + uncertainty + variance within bins -
    covariance within bins (Stephenson et al. 2008). Arguments as for `calibration`."""
    risks, y, n = scores.sigmoid(), of_class.double(), (of_class + others).double()
    index = (10 * risks + 1e-9).long().clamp(max=9)
    sums = [index.bincount(w, minlength=10) for w in (n, n * risks, y, n * risks**2, y * risks)]
    n, p, y, squares, products = torch.stack(sums)[:, sums[0] > 0]
    rate = y.sum() / n.sum()
    parts = {
        "reliability": (p - y).square() / n,
        "resolution": n * (y / n - rate).square(),
        "uncertainty": n * rate * (1 - rate),
        "variance_within": squares - p * p / n,
        "covariance_within": 2 * (products - p * y / n),
    }
    return {name: float(part.sum() / n.sum()) for name, part in parts.items()}


def best_threshold(states: MetricStates, label: int, rule: str, amount: float = 0.0) -> dict[str, float]:
    """The best threshold on the log odds of the class `label`, by a `rule` and its `amount` as in `evaluation.decision`
    (the highest of equal ones), with the numbers of positives and negatives; empty unless there are both."""
    if (state := scores_in(states)) is None:
        return {}
    thresholds, hits, alarms = state.cuts(label)
    positives, negatives = float(hits[0]), float(alarms[0])
    if not positives * negatives:
        return {}
    allowed = math.floor((1 - amount) * (negatives if rule == "specificity" else positives) + 1e-9)
    gains = {
        "specificity": torch.where(alarms <= allowed, hits, -1.0),
        "sensitivity": torch.where(positives - hits <= allowed, -alarms, -math.inf),
        "youden": hits * negatives - alarms * positives,
        "net_benefit": hits * (1 - amount) - alarms * amount,
        "cost": hits * amount - alarms,
    }[rule]
    best = float(thresholds[gains >= gains.max() - 1e-9 * gains.max().abs()][-1])
    return {"threshold": best, "positives": positives, "negatives": negatives}


def at_threshold(states: MetricStates, label: int, threshold: float | None) -> dict[str, float]:
    """The values of `DECISION` that are defined, for positive log odds of the class `label` from `threshold` on."""
    if threshold is None or (state := scores_in(states)) is None:
        return {}
    scores, of_class, others = state.counts(label)
    positive = scores >= threshold
    hits, alarms = float(of_class[positive].sum()), float(others[positive].sum())
    missed, cleared = float(of_class.sum()) - hits, float(others.sum()) - alarms
    shares = (hits, missed), (cleared, alarms), (hits, alarms), (cleared, missed)
    by_name = dict(zip(DECISION, shares, strict=True))
    return {name: right / (right + wrong) for name, (right, wrong) in by_name.items() if right + wrong}


def scores_in(states: MetricStates) -> ClassScores | None:
    """The state with the scores of one model; None without samples, and where several models were tested."""
    state = states.states.get(ClassScores.shared)
    return state if isinstance(state, ClassScores) and (len(state.scores) or state.bins.shape[2]) else None
