"""How different clients are: figures of a partition, before any training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedloom.data.views import Indices


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


def label_skew(counts: Indices, max_pairs: int = 500) -> LabelSkew:
    """Skew figures of class counts [N, C]. Pairs are taken among at most `max_pairs`, evenly spaced clients."""
    sizes, totals = counts.sum(1), counts.sum(0)
    filled = counts[sizes > 0]
    shares = filled / filled.sum(1, keepdims=True)
    chosen = shares[np.linspace(0, len(shares) - 1, min(len(shares), max_pairs)).astype(int)] if len(shares) else shares
    distances = [0.5 * np.abs(chosen[k + 1 :] - chosen[k]).sum(1) for k in range(len(chosen) - 1)]
    return LabelSkew(
        total_variation=float(np.concatenate(distances).mean()) if distances else 0.0,
        classes_per_client=float((filled > 0).sum(1).mean()) if len(filled) else 0.0,
        imbalance=float(totals.max() / totals.min()) if totals.min() > 0 else float("inf"),
        size_ratio=float(sizes.max() / sizes[sizes > 0].min()) if len(filled) else float("inf"),
        empty_clients=tuple(int(k) for k in np.flatnonzero(sizes == 0)),
        empty_classes=tuple(int(c) for c in np.flatnonzero(totals == 0)),
    )
