"""Split the samples of all clients at once, without a loop over clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from fedloom.data.partitions.dealing import matched_counts
from fedloom.data.views import Indices, Views, starts


def hold_out(views: Views, share: ArrayLike, rng: np.random.Generator) -> tuple[Views, Views]:
    """Shuffle each view and hold out floor(share * n_k) samples; return (remaining, held out).

    Args:
        views: rows of each client k, n_k of them.
        share: one number in [0, 1], or one per client [N].
        rng: shuffles.
    """
    shuffled = _sorted(views, rng.random(len(views.order)))
    held_counts = np.floor(np.asarray(share) * views.sizes).astype(np.int64)
    is_held_out = _positions(views) < np.repeat(held_counts, views.sizes)
    return _select(shuffled, ~is_held_out), _select(shuffled, is_held_out)


def split_three(
    views: Views, labels: Indices, num_classes: int, val: float, test: float, rng: np.random.Generator
) -> tuple[Views, Views, Views]:
    """Split each client's samples by class into (train, val, test).

    In each split, a class has its share of the client's samples up to one sample.

    Args:
        views: rows of each client k, n_k of them.
        labels: labels of all samples [n], int64.
        num_classes: C.
        val: share of validation samples; a client gives floor(val * n_k).
        test: share of test samples; a client gives floor(test * n_k).
        rng: shuffles.
    """
    groups = views.holders() * num_classes + labels[views.order]  # (client, class) of each sample
    shuffled = np.lexsort((rng.random(len(groups)), groups))
    present_groups, first, sizes = np.unique(groups[shuffled], return_index=True, return_counts=True)
    rank = np.arange(len(groups)) - np.repeat(first, sizes)
    offset = np.repeat(
        rng.random(len(present_groups)), sizes
    )  # one per (client, class): no class comes first as a rule
    position = np.empty(len(groups))
    position[shuffled] = (rank + offset) / np.repeat(sizes, sizes)
    ordered, index = _sorted(views, position), _positions(views)
    tests, vals = (np.repeat(np.floor(share * views.sizes), views.sizes) for share in (test, val))
    is_test, is_val = index < tests, (index >= tests) & (index < tests + vals)
    return _select(ordered, ~is_test & ~is_val), _select(ordered, is_val), _select(ordered, is_test)


def matched_tests(
    views: Views, labels: Indices, test_labels: Indices, num_classes: int, rng: np.random.Generator
) -> Views | int:
    """Draw for each client as many test samples in its own label mix as there are, see `matched_counts`.

    Views may overlap. Returns the id of the first client that holds a class without test samples, if there is one.

    Args:
        views: training rows of each client.
        labels: labels of the training set [n], int64.
        test_labels: labels of the test set [m], int64.
        num_classes: C.
        rng: draws the test samples.
    """
    members = [np.flatnonzero(test_labels == label) for label in range(num_classes)]
    available, test_rows = np.array([len(class_rows) for class_rows in members]), []
    for client in range(len(views)):
        class_counts = np.bincount(labels[views[client]], minlength=num_classes)
        test_counts = matched_counts(class_counts, available)
        if class_counts.any() and not test_counts.any():
            return client
        test_rows.append(
            np.concatenate(
                [rng.permutation(class_rows)[:count] for class_rows, count in zip(members, test_counts, strict=True)]
            )
        )
    return Views.from_lists(test_rows)


def _positions(views: Views) -> Indices:
    """Return the position of each entry within its client: 0 .. n_k - 1."""
    return np.arange(len(views.order)) - np.repeat(views.offsets[:-1], views.sizes)


def _sorted(views: Views, key: np.ndarray) -> Views:
    """Sort each view by `key` [m], one number per entry of `order`."""
    return Views(views.order[np.lexsort((key, views.holders()))], views.offsets)


def _select(views: Views, chosen: np.ndarray) -> Views:
    """Return the views with the entries where `chosen` [m] is true."""
    sizes = np.bincount(views.holders()[chosen], minlength=len(views))
    return Views(views.order[chosen], starts(sizes))
