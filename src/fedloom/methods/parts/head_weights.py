"""Weights by which a client mixes the heads of others, from class statistics of features: Eq. 8 to 10 of FedPAC."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.core.tables import ClassTable
from fedloom.methods.parts.simplex import minimum_on_simplex


def weighted_means(means: ClassTable, counts: Tensor) -> Tensor:
    """h: class means of m clients [m, C, d], times the share of the class among the client's samples, in float64."""
    shares = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    return shares.unsqueeze(2) * means.values.double()


def head_weights(means: ClassTable, counts: Tensor, variances: Tensor, cut: float) -> Tensor:
    """Return the weights of all clients' heads for each client [m, m], float64; rows sum to 1.

    Row i minimises a^T (diag(variances) + D_i) a on the simplex, D_i[j, l] = (h_i - h_j) . (h_i - h_l): the first part
    is the variance of the mix, the second its bias for client i. Where statistics are not finite, because the run
    diverged, every client keeps its own head.

    Args:
        means: class means of features at one body [m, C, d].
        counts: samples of each class [m, C].
        variances: trace of the covariance of (one-hot class x features), divided by the number of samples [m].
        cut: weights up to this one become 0, and the others are scaled to sum to 1.
    """
    h = weighted_means(means, counts).flatten(1)
    if not bool(h.isfinite().all() and variances.isfinite().all()):
        return torch.eye(len(h), dtype=torch.float64)
    rows = []
    for own in h:
        differences = own - h
        weights = minimum_on_simplex(variances.diag() + differences @ differences.T)
        kept = torch.where(weights > cut, weights, 0.0)
        kept = kept if bool(kept.any()) else weights
        rows.append(kept / kept.sum())
    return torch.stack(rows)
