"""New rows of a table, for a model that has learned from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.categories import unknown_cells
from fedloom.data.sources.regular_files import require_file
from fedloom.data.sources.tables.columns import refuse_missing
from fedloom.data.sources.tables.encoding import encoded
from fedloom.data.sources.tables.formats import Csv, FileTable, Parquet
from fedloom.data.sources.tables.names import as_known
from fedloom.data.sources.tables.words import refuse_misread


def table_rows(
    path: Path, features: Sequence[str], reading: Mapping[str, Any] | None = None
) -> tuple[np.ndarray, list[str], int]:
    """Return the features [n, d], float32, of a CSV or Parquet file's rows, as a run stored its own; notes; and how
    many cells hold words that the run did not know.

    Args:
        path: the file, whose suffix tells the format.
        features: the names that `TableSource` gives: a column, or "column=word". Columns beside these are left out, so
            a label is not needed.
        reading: how the run's own files are written (`Source.reading_keys`).

    Notes are on words that the run did not know. Raises `DataError` for what cannot be read, for missing values, and
    for columns that are missing or of another kind.
    """
    require_file(path, "a table with the columns that the model learned from")
    reader = _reader(path, reading)
    file = reader.opened(path)
    words: dict[str, list[str]] = {}
    for feature in features:
        name, word = _column_of(feature, file.columns, path)
        words.setdefault(name, []).extend([word] if word else [])
    categories = reader.texts(file, [name for name, column_words in words.items() if column_words])
    columns = {}
    for name, column_words in words.items():
        if column_words:
            columns[name] = as_known(categories[name], column_words, reader.cell_format)
        else:
            columns[name] = reader.column(file, name)
        refuse_missing(columns[name], path, is_needed=True)
        if columns[name].words is not None and not column_words:
            refuse_misread(columns[name], path, reader.cell_format)
    x, notes = encoded(columns, np.arange(file.rows), words, path, str(path), other_file=True)
    return x, notes, sum(unknown_cells(column.counts(), words[name]) for name, column in columns.items() if words[name])


def table_labels(
    path: Path, label: str, classes: Sequence[str], reading: Mapping[str, Any] | None = None
) -> np.ndarray:
    """Return the labels [n] of the rows of a CSV or Parquet file, numbers or words.

    Args:
        path: the file, whose suffix tells the format.
        label: name of the column with the labels.
        classes: names of the model's classes; where all labels are among them, as they are written, they are words.
        reading: keys of the source that the model was trained on, such as `separator`; those of another format are left
            out.

    Raises `DataError` for a column that is missing or has gaps.
    """
    reader = _reader(path, reading)
    file = reader.opened(path)
    if label not in file.columns:
        raise DataError(f"{path}: no column '{label}' with the labels: {', '.join(file.columns)[:300]}")
    column = as_known(reader.texts(file, [label])[label], classes, reader.cell_format)
    if not {*(column.words or ())} <= {*classes}:  # class ids, or names in another spelling
        column = reader.column(file, label)
    refuse_missing(column, path, is_needed=True)
    return column.labels()


def _reader(path: Path, reading: Mapping[str, Any] | None) -> FileTable:
    kind = Parquet if path.suffix == ".parquet" else Csv
    keys = {key: value for key, value in (reading or {}).items() if key in kind.model_fields}
    return kind.model_construct(path=path, label="", **keys)


def _column_of(feature: str, columns: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """The column behind a feature, and its word; of a measurement no word."""
    if feature in columns:
        return feature, ""
    ends = [end for end, letter in enumerate(feature) if letter == "=" and feature[:end] in columns]
    if not ends:
        has = ", ".join(columns)[:300]
        raise DataError(f"{path}: no column for '{feature}', from which the model learned: {has}")
    return feature[: ends[-1]], feature[ends[-1] + 1 :]
