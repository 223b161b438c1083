"""A training and a test part for sets that come without an official split."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np

from fedloom.core.errors import DataError

Rows = TypeVar("Rows", np.ndarray, list[tuple[str, int]])


def first_rows(rows: Rows, count: int | None, domain: str) -> Rows:
    """The first `count` rows of a domain, or all for None. Raises `DataError` if there are fewer."""
    if count is not None and count > len(rows):
        raise DataError(f"per_domain = {count}: domain {domain} has {len(rows)} training samples; ask for no more")
    return rows[:count]


def stratified_split(
    labels: np.ndarray, share: float, rng: np.random.Generator, origin: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the row numbers of a training and a test part, shuffled: ceil(share * n) rows are test.

    Each class gives its share, rounded by largest remainder.

    Args:
        labels: [n], integers.
        share: share of the test part, in (0, 1).
        rng: draws and shuffles.
        origin: name of the set in messages. Raises `DataError` if a part would be empty.
    """
    present, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    total = math.ceil(share * len(labels) - 1e-9)
    if not 0 < total < len(labels):
        raise DataError(f"{origin}: {len(labels)} samples cannot be split into training and test parts")
    exact = counts * (total / len(labels))
    counts_taken = np.floor(exact + 1e-9).astype(np.int64)
    counts_taken[np.argsort(counts_taken - exact, kind="stable")[: total - int(counts_taken.sum())]] += 1
    test = np.zeros(len(labels), bool)
    for label in range(len(present)):
        test[rng.permutation(np.flatnonzero(place == label))[: counts_taken[label]]] = True
    return rng.permutation(np.flatnonzero(~test)), rng.permutation(np.flatnonzero(test))
