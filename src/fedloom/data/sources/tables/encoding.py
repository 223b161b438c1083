"""Columns of a table as features: measurements as they are, a word as one 1 among 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data.categories import refuse_other_spelling, unknown_cells
from fedloom.data.labels import sorted_words
from fedloom.data.memory import require_memory
from fedloom.data.sources.tables.columns import Column, ReadingError
from fedloom.data.sources.tables.words import CATEGORIES

Vocabulary = Mapping[str, Sequence[str]]
"""The words of each column in the order of their features; none for measurements."""

_LISTED = 5


def vocabulary(columns: Mapping[str, Column], rows: np.ndarray, origin: str) -> dict[str, list[str]]:
    """Return the different words that the training rows of each column hold, in order; [] for a column of numbers.

    Args:
        columns: the columns by name.
        rows: numbers of the training rows, int64.
        origin: name of the file in messages. Raises `DataError` for a column with too many different words.
    """
    words: dict[str, list[str]] = {}
    for name, column in columns.items():
        words[name] = [] if column.words is None else sorted_words(column.rows(rows).words or ())
        if len(words[name]) > CATEGORIES:
            raise DataError(
                f"{origin}: column '{name}' holds {len(words[name])} different words, more than {CATEGORIES}; an id or "
                "free text teaches nothing: leave it out (features)"
            )
    return words


def encoded(
    columns: Mapping[str, Column],
    rows: np.ndarray,
    words: Vocabulary,
    path: Path,
    origin: str,
    other_file: bool,
) -> tuple[np.ndarray, list[str]]:
    """Return features [n, d], float32, and notes on words that are not in the vocabulary.

    Args:
        columns: the columns by name.
        rows: numbers of the rows [n], int64.
        words: the vocabulary: words of each column, in the order of its features; [] for a column of numbers.
        path: the file, for messages.
        origin: name of the file in notes.
        other_file: whether the rows are of another file than the vocabulary.

    Raises `DataError` for a column of another kind than `words` says, and for one that another file spells otherwise.
    """
    width = sum(max(1, len(column_words)) for column_words in words.values())
    require_memory(4 * len(rows) * width, origin)
    x, offset = np.zeros((len(rows), width), np.float32), 0
    unknown: dict[str, int] = {}
    for name, column_words in words.items():
        column = columns[name].rows(rows)
        if bool(column_words) != (column.words is not None):
            raise ReadingError(
                f"{origin}: column '{name}' holds words in one of the two files and numbers in the other",
                "mend the file, or name it as categorical",
            )
        if column.words is None:
            x[:, offset] = column.as_numbers(path)
        else:
            if other_file:
                refuse_other_spelling(column.counts(), column_words, f"{path}: column '{name}'")
            unknown[name] = unknown_cells(column.counts(), column_words)
            rank = {word: position for position, word in enumerate(column_words)}
            positions = np.array([rank.get(word, -1) for word in column.words], np.int64)[column.values]
            x[np.flatnonzero(positions >= 0), offset + positions[positions >= 0]] = 1
        offset += max(1, len(column_words))
    return x, _unknown_note(unknown, len(rows), path)


def _unknown_note(unknown: Mapping[str, int], rows: int, path: Path) -> list[str]:
    """One sentence on all columns with unknown words, or nothing."""
    counts = [f"'{name}' ({count:,})" for name, count in unknown.items() if count]
    if not counts:
        return []
    rest = f" and {len(counts) - _LISTED} more columns" if len(counts) > _LISTED else ""
    return [
        f"{path}: words that no training row holds are 0 in all features of their column; rows of {rows:,} with such "
        f"words: {', '.join(counts[:_LISTED])}{rest}"
    ]
