"""How different domains look: a feature-shift figure, before any training."""

from __future__ import annotations

from itertools import combinations

import torch

from fedloom.data.dataset import Dataset

_SAMPLES = 500


def feature_shift(data: Dataset) -> float | None:
    """Mean over pairs of domains of the RMS, over all inputs, of |mean_a - mean_b| / pooled standard deviation.

    0 where domains look alike on average; 1 where they differ by one standard deviation at every input. Means and
    deviations are taken over at most 500, evenly spaced samples of each domain. Inputs that are constant in both
    domains do not count. None without at least two domains that hold samples, and for tokens.
    """
    if data.domain is None or (not data.x.dtype.is_floating_point and data.x.dtype != torch.uint8):
        return None
    moments = []
    for domain in range(len(data.domains)):
        members = torch.nonzero(data.domain == domain).flatten()
        if len(members):
            spaced = torch.linspace(0, len(members) - 1, min(len(members), _SAMPLES)).long()
            x = data.x[members[spaced]].flatten(1).double()
            moments.append((x.mean(0), x.var(0, correction=0)))
    shifts = []
    for (mean_a, var_a), (mean_b, var_b) in combinations(moments, 2):
        pooled = (var_a + var_b) / 2
        varies = pooled > 0
        squared = (mean_a - mean_b).square()[varies] / pooled[varies]
        shifts.append(float(squared.mean().sqrt()) if len(squared) else 0.0)
    return sum(shifts) / len(shifts) if shifts else None
