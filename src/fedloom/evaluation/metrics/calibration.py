"""Metrics of probabilities: calibration errors, the Brier score and the negative log-likelihood.

The expected calibration error (Guo et al. 2017, arXiv 1706.04599) compares the confidence max_c p_c with the share of
correct predictions, in 15 bins ((b - 1) / 15, b / 15]. It grows where samples are few, so it is reported on all samples
together and not by client."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from fedloom.evaluation.metric import METRICS, Metric, Predictions
from fedloom.evaluation.metrics.basic import MeanOverSamples, NatsOverSamples

BINS = 15
_FINE_BINS = 4096


class OfConfidence(Metric):
    """A calibration error, which is reported on all samples together."""

    over: ClassVar[Literal["clients", "samples", "honest samples"]] = "samples"
    detailed: ClassVar[bool] = False
    needs_scores: ClassVar[bool] = True
    may_diverge: ClassVar[bool] = True
    higher_is_better: ClassVar[bool | None] = False


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

    needs_scores: ClassVar[bool] = True
    may_diverge: ClassVar[bool] = True
    higher_is_better: ClassVar[bool | None] = False

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
    correct = (predictions.predicted == predictions.labels).cpu().double()
    return predictions.probabilities.amax(1), correct


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
