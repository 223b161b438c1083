"""Measures of how much clients and domains differ, before any training."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fedloom.data.dataset import Dataset
from fedloom.data.views import Indices, Views, evenly_spaced

_SAMPLES = 500  # of each domain, for its figures of feature shift


@dataclass(frozen=True, slots=True)
class LabelSkew:
    """Figures over the clients that hold samples.

    total_variation: mean over pairs of clients of 1/2 sum_c |p_k(c) - p_q(c)|, in [0, 1]. classes_per_client: mean
    number of classes held. imbalance: largest class / smallest class over all clients (inf if one is empty).
    size_ratio: largest client / smallest client. empty_clients, empty_classes: ids that hold or have nothing.
    """

    total_variation: float
    classes_per_client: float
    imbalance: float
    size_ratio: float
    empty_clients: tuple[int, ...]
    empty_classes: tuple[int, ...]


def label_skew(views: Views, labels: Indices, num_classes: int, max_pairs: int = 500) -> LabelSkew:
    """Measure the label skew of views into samples with `labels` [n].

    The total variation is taken over all pairs among at most `max_pairs`, evenly spaced clients; all other figures
    over all clients. Time and memory grow with samples and clients, not with clients x classes.
    """
    sizes, held_labels = views.sizes, labels[views.order]
    totals, clients_with_samples = np.bincount(held_labels, minlength=num_classes), np.flatnonzero(sizes)
    class_client_pairs = len(
        np.unique(views.holders() * num_classes + held_labels)
    )  # (client, class) with at least one sample
    chosen: list[int] = evenly_spaced(clients_with_samples, max_pairs).tolist()
    shares = [np.bincount(labels[views[k]], minlength=num_classes) / sizes[k] for k in chosen]
    distances = [total_variation(shares[k + 1 :], shares[k]) for k in range(len(shares) - 1)]
    return LabelSkew(
        total_variation=float(np.concatenate(distances).mean()) if distances else 0.0,
        classes_per_client=class_client_pairs / len(clients_with_samples) if len(clients_with_samples) else 0.0,
        imbalance=float(totals.max() / totals.min()) if totals.min() > 0 else float("inf"),
        size_ratio=float(sizes.max() / sizes[clients_with_samples].min())
        if len(clients_with_samples)
        else float("inf"),
        empty_clients=tuple(np.flatnonzero(sizes == 0).tolist()),
        empty_classes=tuple(np.flatnonzero(totals == 0).tolist()),
    )


def total_variation(first: ArrayLike, second: ArrayLike) -> NDArray[np.float64]:
    """Return the total variation [...] of two distributions [..., C] that broadcast: half of sum |p - q|.

    It is 0 for equal distributions, and 1 for those without a common class.

    Args:
        first: p.
        second: q.

    Example:
        >>> float(total_variation([0.5, 0.5], [1.0, 0.0]))
        0.5
    """
    return np.asarray(np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64)).sum(-1) / 2)


def feature_shift(data: Dataset) -> float | None:
    """Return the mean over pairs of domains of the RMS, over inputs, of |mean_a - mean_b| / pooled standard deviation.

    0 where domains look alike on average; 1 where they differ by one standard deviation at every input. Means and
    deviations are taken over at most 500, evenly spaced samples of each domain. Inputs that are constant in both
    domains do not count. None without at least two domains that hold samples, and for tokens.
    """
    if data.domain is None or (not data.x.dtype.is_floating_point and data.x.dtype != torch.uint8):
        return None
    moments = []
    for domain in range(len(data.domains)):
        members = np.flatnonzero(data.domain == domain)
        if len(members):
            x = data.x[evenly_spaced(members, _SAMPLES)].flatten(1).double()
            moments.append((x.mean(0), x.var(0, correction=0)))
    shifts = []
    for (mean_a, var_a), (mean_b, var_b) in combinations(moments, 2):
        pooled = (var_a + var_b) / 2
        varies = pooled > 0
        squared = (mean_a - mean_b).square()[varies] / pooled[varies]
        shifts.append(float(squared.mean().sqrt()) if len(squared) else 0.0)
    return sum(shifts) / len(shifts) if shifts else None
