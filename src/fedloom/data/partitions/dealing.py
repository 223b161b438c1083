"""Deal samples by shares or counts per client and class, without a loop over clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedloom.data.views import Indices, Views, starts

Shares = NDArray[np.float64]


def shuffled_classes(labels: Indices, num_classes: int, rng: np.random.Generator) -> list[Indices]:
    """Return the samples of each class in random order: C arrays of rows, int64.

    Args:
        labels: [n], int64.
        num_classes: C.
        rng: shuffles.
    """
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(labels, minlength=num_classes))[:-1])


def cut(shares: Shares, count: int) -> Indices:
    """Cut `count` samples at the cumulative `shares` [N] (sum 1), rounded down; return sizes [N] of sum `count`."""
    edges = (np.cumsum(shares) * count).astype(np.int64)
    edges[-1] = count
    return np.diff(np.minimum(edges, count), prepend=0)


def deal_by_shares(labels: Indices, shares: Shares, rng: np.random.Generator) -> Views:
    """Cut every class, shuffled, at cumulative shares. The views are complete and disjoint.

    Client k gets the samples between floor(cumulative share before k * n_c) and floor(the one after * n_c) of each
    class c.

    Args:
        labels: [n], int64.
        shares: share of each client in each class [N, C]; columns sum to 1.
        rng: shuffles the classes.
    """
    clients, num_classes = shares.shape
    owner = np.empty(len(labels), np.int64)
    for label, members in enumerate(shuffled_classes(labels, num_classes, rng)):
        owner[members] = np.repeat(np.arange(clients), cut(shares[:, label], len(members)))
    return Views.from_owners(owner, clients)


def deal_by_counts(labels: Indices, counts: Indices, rng: np.random.Generator) -> Views:
    """Give each client random samples of each class. The views are disjoint; samples beyond the counts go to nobody.

    Args:
        labels: [n], int64.
        counts: samples of each client and class [N, C], at most n_c in a column.
        rng: draws the samples.
    """
    clients, num_classes = counts.shape
    owner = np.full(len(labels), -1, np.int64)
    for label, members in enumerate(shuffled_classes(labels, num_classes, rng)):
        owners = np.repeat(np.arange(clients), counts[:, label])
        owner[members[: len(owners)]] = owners
    return Views.from_owners(owner, clients)


def deal_alike(
    dealt: Views, labels: Indices, other_labels: Indices, num_classes: int, rng: np.random.Generator
) -> Views:
    """Deal samples so that each client has the share of each class that another dealing gives it.

    Args:
        dealt: views that deal the first samples. Samples of a class of which it deals nothing go to nobody.
        labels: labels of the samples that `dealt` deals [n], int64.
        other_labels: labels of the samples to deal [n'], int64.
        num_classes: C.
        rng: shuffles the classes.
    """
    holders, held_labels = dealt.holders(), labels[dealt.order]
    owner = np.full(len(other_labels), -1, np.int64)
    for label, members in enumerate(shuffled_classes(other_labels, num_classes, rng)):
        counts = np.bincount(holders[held_labels == label], minlength=len(dealt))
        if counts.sum():  # whole numbers: the edges are exact
            edges = starts(counts) * len(members) // counts.sum()
            owner[members] = np.repeat(np.arange(len(dealt)), np.diff(edges))
    return Views.from_owners(owner, len(dealt))


def matched_counts(train: Indices, test: Indices) -> Indices:
    """Return how many test samples per class [C], of `test` [C], match a client's training samples `train` [C].

    floor(r * train_c) with r = min over the classes held of test_c / train_c: the largest test set with the client's
    own mix (Fed-CO2, Li et al. 2023). All zero if a class held has no test sample.
    """
    held_classes = np.flatnonzero(train)
    if not len(held_classes):
        return np.zeros_like(train)
    scarcest_class = held_classes[np.argmin(test[held_classes] / train[held_classes])]
    counts: Indices = train * test[scarcest_class] // train[scarcest_class]
    return counts
