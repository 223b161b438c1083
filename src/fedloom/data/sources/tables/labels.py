"""The label column of a table: class ids, the same names in every file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.labels import PARTS, class_ids, named_ids
from fedloom.data.sources.tables.columns import Column

_MOST_NUMBERS = 1000


def label_ids(columns: Sequence[Column], paths: Sequence[Path]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Class ids [n] of each file (training first), and the names of the classes. `columns` lack no values.

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
        ids, classes = named_ids(labels, [f"{path} ({part})" for path, part in zip(paths, PARTS, strict=False)])
    else:
        ids, classes = class_ids(labels, str(paths[0]))
    for column, path in zip(columns, paths, strict=True):
        if column.words is None and len(np.unique(column.values)) > _MOST_NUMBERS:
            _refuse_measurement(column, path, "")
    return ids, classes


def _refuse_measurement(column: Column, path: Path, also: str) -> None:
    values = np.unique(column.values)
    raise DataError(
        f"{path}: label '{column.name}' has {len(values):,} different values, such as {values[0]:g}: {also}it looks "
        "like a measurement; name a column of classes, or bin the values"
    )
