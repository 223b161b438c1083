"""Columns whose cells are names: labels, owners and categories, which may look like numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from fedloom.data.labels import MISSING_MARKS
from fedloom.data.sources.tables.columns import CellFormat, Column, number_name

_EXACT = 2**53  # a float holds all whole numbers below


def merge_names(numbers: Column, texts: Column, cell_format: CellFormat) -> bool:
    """Return whether names that a file writes in several ways, as 01 and 1, would be one number.

    Args:
        numbers: a column that was read as numbers.
        texts: the same cells as they are written.
        cell_format: how the file writes numbers.
    """
    values: dict[str, int | float] = {}
    for word, value in _value_by_word(numbers, texts):
        spelling = cell_format.spelling(word)
        if isinstance(value, float) and abs(value) >= _EXACT and spelling.removeprefix("-").isdecimal():
            return True  # its last digits are lost
        values[spelling] = value
    return len(set(values.values())) < len(values)


def _value_by_word(numbers: Column, texts: Column) -> Iterator[tuple[str, int | float]]:
    """The different texts of a column with their numbers, but for those that stand for a missing value."""
    present = np.ones(len(numbers.values), bool)
    for column in (numbers, texts):
        present &= True if column.missing is None else ~column.missing
    rows = np.flatnonzero(present)
    codes, first = np.unique(texts.values[rows], return_index=True)
    for code, value in zip(codes.tolist(), numbers.values[rows[first]].tolist(), strict=True):
        yield (texts.words or ())[code], value


def as_texts(column: Column) -> Column:
    """Return numbers and booleans as words, as Python writes them; words unchanged."""
    if column.words is not None or column.values.dtype.kind != "b":
        return column.as_words()
    return replace(column, values=column.values.astype(np.int64), words=("False", "True"))


def as_known(texts: Column, vocabulary: Collection[str], cell_format: CellFormat) -> Column:
    """Return a column whose words are spelled as the known ones are; other words stay as they are.

    Where all known words are numbers, as of a column that was read as numbers, words are matched by value: 01 is 1.
    Else they are matched by how they are written, since 01 and 1 may be two names.

    Args:
        texts: the cells as they are written.
        vocabulary: the known words.
        cell_format: how the file writes numbers.
    """
    are_numbers = not cell_format.typed and all(_number_name(word, CellFormat()) == word for word in vocabulary)
    words = texts.words or ()
    names = [_known_name(word, vocabulary, are_numbers, cell_format) for word in words]
    missing_marks = MISSING_MARKS if cell_format.missing is None else cell_format.missing
    marks = {_number_name(mark, cell_format) or mark for mark in missing_marks} if are_numbers else set[str]()
    absent = [name not in vocabulary and (_number_name(name, cell_format) or name) in marks for name in names]
    present = sorted({name for name, is_absent in zip(names, absent, strict=True) if not is_absent})
    rank = {name: code for code, name in enumerate(present)}
    codes = np.array([-1 if lacks else rank[name] for name, lacks in zip(names, absent, strict=True)] + [-1], np.int64)
    values = codes[texts.values if texts.missing is None else np.where(texts.missing, len(words), texts.values)]
    return replace(texts, values=values, words=tuple(present), missing=values < 0 if (values < 0).any() else None)


def _known_name(word: str, vocabulary: Collection[str], are_numbers: bool, cell_format: CellFormat) -> str:
    """The known word that a text stands for; the text itself if there is none."""
    if word in vocabulary or cell_format.typed:
        return word
    names = [cell_format.spelling(word)]
    if are_numbers:
        names += [_number_name(word, cell_format) or word, {"false": "0", "true": "1"}.get(word.lower(), word)]
    return next((name for name in names if name in vocabulary), word)


def _number_name(word: str, cell_format: CellFormat) -> str | None:
    value = cell_format.exact(word)
    return None if value is None else number_name(value)
