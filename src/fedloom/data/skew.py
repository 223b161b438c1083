"""How different clients are: figures of a partition, before any training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedloom.data.views import Indices, Views


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
    """Skew figures of views into samples with `labels` [n].

    The total variation is taken over all pairs among at most `max_pairs`, evenly spaced clients; all other figures
    over all clients. Time and memory grow with samples and clients, not with clients x classes.
    """
    sizes, held = views.sizes, labels[views.order]
    totals, filled = np.bincount(held, minlength=num_classes), np.flatnonzero(sizes)
    pairs = len(np.unique(views.holders() * num_classes + held))  # (client, class) with at least one sample
    chosen: list[int] = filled[
        np.linspace(0, max(0, len(filled) - 1), min(len(filled), max_pairs)).astype(int)
    ].tolist()
    shares = [np.bincount(labels[views[k]], minlength=num_classes) / sizes[k] for k in chosen]
    distances = [0.5 * np.abs(np.array(shares[k + 1 :]) - shares[k]).sum(1) for k in range(len(shares) - 1)]
    return LabelSkew(
        total_variation=float(np.concatenate(distances).mean()) if distances else 0.0,
        classes_per_client=pairs / len(filled) if len(filled) else 0.0,
        imbalance=float(totals.max() / totals.min()) if totals.min() > 0 else float("inf"),
        size_ratio=float(sizes.max() / sizes[filled].min()) if len(filled) else float("inf"),
        empty_clients=tuple(np.flatnonzero(sizes == 0).tolist()),
        empty_classes=tuple(np.flatnonzero(totals == 0).tolist()),
    )
