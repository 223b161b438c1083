"""The label column of a table: class ids, the same names in every file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.labels import class_ids, class_notes, named_ids
from fedloom.data.sources.tables.columns import Column

_PARTS = ("train", "test")
_MOST_NUMBERS = 1000


def label_ids(columns: Sequence[Column], paths: Sequence[Path]) -> tuple[list[np.ndarray], tuple[str, ...], list[str]]:
    """Class ids [n] of each file (training first), the names of the classes, and notes. `columns` lack no values.

    Classes are matched by name: 1 in one file, 1.0 or the text "1" in the other are one class. Raises `DataError` for
    measurements.
    """
    for column, path in zip(columns, paths, strict=True):
        if column.words is None and column.values.dtype.kind == "f" and not column.is_whole():
            _refuse_measurement(column, path, "labels have dtype float64, and ")
    labels = [column.labels() for column in columns]
    if len({part.dtype.kind in "iu" for part in labels}) > 1:
        labels = [part.astype(np.str_) for part in labels]
    if labels[0].dtype.kind == "U":
        ids, classes = named_ids(labels, [f"{path} ({part})" for path, part in zip(paths, _PARTS, strict=False)])
    else:
        ids, classes = class_ids(labels, str(paths[0]))
    for column, path in zip(columns, paths, strict=True):
        if column.words is None and len(np.unique(column.values)) > _MOST_NUMBERS:
            _refuse_measurement(column, path, "")
    if not all(_fit(part, classes) for part in ids):
        return ids, classes, []
    train, test = (np.bincount(part, minlength=len(classes)).tolist() for part in (ids[0], ids[-1]))
    notes = class_notes([str(path) for path in paths], classes, train, test)
    return ids, classes, notes


def _fit(ids: np.ndarray, classes: Sequence[str]) -> bool:
    """Whether these are ids of `classes`; others are refused where samples are checked."""
    return ids.dtype.kind in "iu" and bool(ids.min() >= 0 and ids.max() < len(classes))


def _refuse_measurement(column: Column, path: Path, also: str) -> None:
    values = np.unique(column.values)
    raise DataError(
        f"{path}: label '{column.name}' has {len(values):,} different values, such as {values[0]:g}: {also}it looks "
        "like a measurement; name a column of classes, or bin the values"
    )
