"""A metric as a plug-in adds it: one class, and nothing else in fedloom knows it."""

import math
from dataclasses import dataclass

import torch

from fedloom.evaluation import METRICS, Metric


@METRICS.register("brier_score")
@dataclass(frozen=True, slots=True)
class Brier(Metric):
    """The mean squared distance of softmax to the one-hot label, in [0, 2] (Brier, 1950)."""

    squares: float
    total: int

    @classmethod
    def new(cls, predictions):
        shares = predictions.logits.double().softmax(1)
        truth = torch.nn.functional.one_hot(predictions.labels, shares.shape[1])
        return cls(float((shares - truth).square().sum()), len(shares))

    def compute(self):
        return self.squares / self.total if self.total else math.nan
