"""New rows of a table, for a model that has learned from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.categories import unknown_cells
from fedloom.data.sources.regular_files import require_file
from fedloom.data.sources.tables.columns import Column, ReadingError, incomplete_rows, refuse_missing
from fedloom.data.sources.tables.encoding import encoded
from fedloom.data.sources.tables.formats import Csv, FileTable, Parquet
from fedloom.data.sources.tables.names import as_known
from fedloom.data.sources.tables.table_files import TableFile
from fedloom.data.sources.tables.words import refuse_misread


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """Where the labels of new rows are. classes: names of the model's classes; labels among them are words, as they are
    written, and others are numbers or words."""

    name: str
    classes: Sequence[str]


@dataclass(frozen=True, slots=True)
class NewRows:
    """New rows as a run stored its own.

    x: features [n, d], float32. rows: where these rows are in the file [n], from 0 on. labels: of these rows [n], if a
    column was named. notes: on words that the run did not know. unknown_words: cells with such words. left_out: rows
    that lack a value, where the run leaves these out.
    """

    x: np.ndarray
    rows: np.ndarray
    labels: np.ndarray | None
    notes: list[str]
    unknown_words: int
    left_out: int


def table_rows(
    path: Path,
    features: Sequence[str],
    reading: Mapping[str, Any] | None = None,
    label: LabelColumn | None = None,
) -> NewRows:
    """Return the rows of a CSV or Parquet file, whose suffix tells the format.

    Args:
        path: the file.
        features: the names that `TableSource` gives: a column, or "column=word". Columns beside these are left out, so
            a label is not needed.
        reading: how the run's own files are read (`Source.reading_keys`); those of another format are left out.
        label: the column of the labels, if they are needed.

    Raises `DataError` for what cannot be read, for missing values unless the run leaves such rows out, and for columns
    that are missing or of another kind.
    """
    require_file(path, "a table with the columns that the model learned from")
    kind = Parquet if path.suffix == ".parquet" else Csv
    keys = {key: value for key, value in (reading or {}).items() if key in kind.model_fields}
    try:
        return _rows(kind.model_construct(path=path, label="", **keys), features, label)
    except ReadingError as error:
        raise DataError(f"{error.problem}; {error.without_keys}") from None


def _rows(reader: FileTable, features: Sequence[str], label: LabelColumn | None) -> NewRows:
    file = reader.opened(reader.path)
    labels = None if label is None else _labels(reader, file, label)
    words: dict[str, list[str]] = {}
    for feature in features:
        name, word = _column_of(feature, file.columns, file.path)
        words.setdefault(name, []).extend([word] if word else [])
    columns = _columns(reader, file, words)
    needed = [*columns.values(), *([] if labels is None else [labels])]
    if reader.incomplete == "refuse":
        for column in needed:
            refuse_missing(column, file.path, is_needed=True)
    complete = np.flatnonzero(~incomplete_rows(needed, file.rows))
    if not len(complete):
        raise DataError(f"{file.path}: every row lacks a value")
    x, notes = encoded(columns, complete, words, file.path, str(file.path), other_file=True)
    unknown = sum(
        unknown_cells(columns[name].rows(complete).counts(), column_words)
        for name, column_words in words.items()
        if column_words
    )
    return NewRows(
        x,
        complete,
        None if labels is None else labels.rows(complete).labels(),
        notes,
        unknown,
        file.rows - len(complete),
    )


def _columns(reader: FileTable, file: TableFile, words: Mapping[str, Sequence[str]]) -> dict[str, Column]:
    """The columns that the model learned from, by name; `words`: the known ones of each, none of measurements."""
    texts = reader.texts(file, [name for name, column_words in words.items() if column_words])
    columns = {
        name: as_known(texts[name], column_words, reader.cell_format) if column_words else reader.column(file, name)
        for name, column_words in words.items()
    }
    for name, column in columns.items():
        if column.words is not None and not words[name]:
            refuse_misread(column, file.path, reader.cell_format)
    return columns


def _labels(reader: FileTable, file: TableFile, label: LabelColumn) -> Column:
    if label.name not in file.columns:
        has = ", ".join(file.columns)[:300]
        raise DataError(f"{file.path}: no column '{label.name}' with the labels: {has}")
    column = as_known(reader.texts(file, [label.name])[label.name], label.classes, reader.cell_format)
    if {*(column.words or ())} <= {*label.classes}:
        return column
    return reader.column(file, label.name)  # class ids, or names in another spelling


def _column_of(feature: str, columns: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """The column behind a feature, and its word; of a measurement no word."""
    if feature in columns:
        return feature, ""
    ends = [end for end, letter in enumerate(feature) if letter == "=" and feature[:end] in columns]
    if not ends:
        has = ", ".join(columns)[:300]
        raise DataError(f"{path}: no column for '{feature}', from which the model learned: {has}")
    return feature[: ends[-1]], feature[ends[-1] + 1 :]
