"""Features of a class without those that lie apart, by distance and direction."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.methods.contract.sample_statistics import LabelledRows
from fedloom.methods.parts.contrast import unit


def means_of_kept(rows: LabelledRows, classes: int, share: float) -> ClassTable:
    """Return the mean of the features of each class that `kept` keeps [C, d], float32.

    Args:
        rows: features [n, d] with their labels.
        classes: C.
        share: weight of the distance, as `kept` takes it.
    """
    sums = torch.zeros(classes, rows.values.shape[1], dtype=torch.float64)
    counts = torch.zeros(classes, dtype=torch.float64)
    for label in range(classes):
        own = rows.values[rows.labels == label].double()
        own = own[kept(own, share)] if len(own) else own
        sums[label], counts[label] = own.sum(0), len(own)
    return ClassTable.from_sums(sums, counts).to(torch.float32)


def kept(rows: Tensor, share: float) -> Tensor:
    """Return which features of one class are within 1.5 interquartile ranges of the quartiles of a score [n], bool.

    The score mixes the distance to their mean and the cosine with it, both scaled to 0 to 1; the one that varies less,
    relative to its mean, weighs more. Up to three features are all kept, and of more at least half.

    Args:
        rows: features [n, d] of one class, float64.
        share: weight of the distance where both vary alike.
    """
    mean = rows.mean(0, keepdim=True)
    distances, cosines = (rows - mean).norm(dim=1), (unit(rows) @ unit(mean).T).squeeze(1)
    if len(rows) < 3 or not rows.isfinite().all():
        return torch.ones(len(rows), dtype=torch.bool)
    ratio = _variation(distances) / _variation(cosines)
    weight = (share * (1 - 0.3 * torch.tanh(0.5 * (ratio - 1))).clamp(0.4, 1.6)).clamp(0.1, 0.9)
    scores = weight * (1 - _scaled(distances)) + (1 - weight) * _scaled(cosines)
    first, third = scores.quantile(0.25), scores.quantile(0.75)
    reach = 1.5 * (third - first)
    return (scores >= first - reach) & (scores <= third + reach)


def _variation(values: Tensor) -> Tensor:
    """The coefficient of variation of values [n], with a floor under its parts."""
    return values.std().clamp(min=1e-8) / values.mean().abs().clamp(min=1e-8)


def _scaled(values: Tensor) -> Tensor:
    """The values [n], moved and scaled to 0 to 1."""
    return (values - values.min()) / (values.max() - values.min() + 1e-8)
