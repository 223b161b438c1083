"""Test samples that equal training samples: in all values and in the label."""

from __future__ import annotations

import math

import numpy as np

from fedloom.data.dataset import Dataset
from fedloom.data.views import Indices

_START = 4096  # bytes of a sample that are compared before the whole of it
_MOST_BYTES = 2**30  # that are compared at a time, in about a second
_OF_LABELS = 0x9E3779B97F4A7C15  # odd: labels differ in all of its multiples


def repeated_samples_notes(train: Dataset, train_rows: Indices, test: Dataset) -> tuple[str, ...]:
    """Return a note that counts the test samples that equal a training sample, and beside it one that counts training
    samples that equal each other, which tells coincidences. Nothing if no test sample does.

    Args:
        train: the set that holds the training samples.
        train_rows: numbers of those that are dealt to clients.
        test: the test set.
    """
    if (train.classes, train.x.dtype, train.input_shape) != (test.classes, test.x.dtype, test.input_shape):
        return ()
    rows = [train_rows, np.arange(len(test), dtype=np.int64)]
    hashes = [np.zeros(len(part), np.uint64) for part in rows]
    width = train.x.element_size() * math.prod(train.input_shape)
    for compared in sorted({min(_START, width), width} - {0}):
        size = compared * sum(map(len, rows))
        if size > _MOST_BYTES:
            return (
                f"test samples were not compared with training samples, which would show those in both: {size:,} bytes "
                f"are more than {_MOST_BYTES:,}",
            )
        hashes = [_hashes(data, part, compared) for data, part in zip((train, test), rows, strict=True)]
        values, counts = np.unique(np.concatenate(hashes), return_counts=True)
        repeated = [np.isin(part, values[counts > 1]) for part in hashes]
        rows = [part[kept] for part, kept in zip(rows, repeated, strict=True)]
        hashes = [part[kept] for part, kept in zip(hashes, repeated, strict=True)]
    in_both = int(np.isin(hashes[1], hashes[0]).sum())
    if not in_both or not width:
        return ()
    _, counts = np.unique(hashes[0], return_counts=True)
    repeated_in_training = int(counts[counts > 1].sum())
    note = f"{in_both:,} of {len(test):,} test samples equal a training sample in all values and in the label"
    also = f"{repeated_in_training:,} of {len(train_rows):,} training samples equal another one"
    return (note, also) if repeated_in_training else (note,)


def _hashes(data: Dataset, rows: Indices, compared: int) -> np.ndarray:
    """A hash of the label and the first bytes of each of the samples `rows` [n]."""
    samples = data.x.contiguous().numpy().reshape(len(data), math.prod(data.input_shape)).view(np.uint8)
    starts = samples[:, :compared]
    hashes = np.fromiter((hash(starts[row].tobytes()) for row in rows.tolist()), np.int64, len(rows)).view(np.uint64)
    return hashes ^ (data.y.numpy()[rows].astype(np.uint64) * np.uint64(_OF_LABELS))
