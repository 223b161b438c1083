"""Columns of a table: numbers as stored or words, and which cells are missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedloom.core.errors import DataError, short_repr

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST = 200  # characters of a word
_LARGEST = 1e30
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_SPACES = {"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2212": "-", "\u2019": "'"}


@dataclass(frozen=True, slots=True)
class CellFormat:
    """How a file writes its cells: the keys of `TableSource` with the same names. `typed`: the file states the kinds of
    its columns itself, so that texts become numbers only where `decimal` or `thousands` says so."""

    decimal: str = "."
    thousands: str | None = None
    missing: tuple[str, ...] | None = None
    typed: bool = False

    def number(self, word: str) -> float | None:
        """The value of a word that is a number in this cell_format, else None."""
        plain = to_ascii(word)
        if self.thousands is not None:
            groups = rf"[-+]?\d{{1,3}}(?:{re.escape(self.thousands)}\d{{3}})+(?:{re.escape(self.decimal)}\d*)?"
            if re.fullmatch(groups, plain):
                plain = plain.replace(self.thousands, "")
        if self.decimal != ".":
            plain = plain.replace(".", " ").replace(self.decimal, ".")
        return float(plain) if _NUMBER.fullmatch(plain) else None


@dataclass(frozen=True, slots=True)
class Column:
    """One column [n]. `values`: numbers as stored; or of words the index into `words`, the different ones that occur.

    missing: bool [n], the cells without a value, or None if there are none; their `values` mean nothing.
    """

    name: str
    values: np.ndarray
    words: tuple[str, ...] | None = None
    missing: np.ndarray | None = None
    absence: Literal["null", "blank", "nan"] = "null"
    """How cells lack their value: as a null (or a mark that stands for one), as an empty text, as a NaN."""

    def rows(self, rows: np.ndarray) -> Column:
        """The same column of some rows, none of which lacks a value; words that do not occur there are left out."""
        values = self.values[rows]
        if self.words is None:
            return Column(self.name, values)
        present, codes = np.unique(values, return_inverse=True)
        return Column(self.name, codes, tuple(self.words[code] for code in present.tolist()))

    def counts(self) -> dict[str, int]:
        """How many cells hold each word; empty for numbers."""
        words = self.words
        if words is None:
            return {}
        held = self.values if self.missing is None else self.values[~self.missing]
        counts = np.bincount(held, minlength=len(words)).tolist()
        return {word: count for word, count in zip(words, counts, strict=True) if count}

    def first(self, words: Collection[str]) -> int:
        """The first row, from 1 on, that holds one of these words."""
        codes = [code for code, word in enumerate(self.words or ()) if word in words]
        held = np.isin(self.values, codes) if self.missing is None else np.isin(self.values, codes) & ~self.missing
        return int(np.argmax(held)) + 1

    def labels(self) -> np.ndarray:
        """Class or owner of each row: words, or numbers; floats that are whole numbers become integers."""
        if self.words is not None:
            return np.array(self.words, np.str_)[self.values] if self.words else np.zeros(0, np.str_)
        if self.values.dtype.kind == "b":
            return self.values.astype(np.str_)
        return self.values.astype(np.int64) if self.is_whole() else self.values

    def is_whole(self) -> bool:
        """Whether these are whole numbers, also where a program has written them as floats."""
        if self.words is not None or self.values.dtype.kind in "iu":
            return self.words is None
        small = self.values.dtype.kind == "f" and bool((np.abs(self.values.astype(np.float64)) < 2**53).all())
        return small and bool((self.values == np.floor(self.values)).all())

    def as_words(self) -> Column:
        """The same column, whose numbers are names."""
        if self.words is not None:
            return self
        numbers, codes = np.unique(self.values.astype(np.float64), return_inverse=True)
        return replace(self, values=codes, words=tuple(f"{value:.15g}" for value in numbers.tolist()))

    def as_numbers(self, path: Path) -> np.ndarray:
        """Measurements float64 [n]. Raises `DataError` for one that is infinite or too large for float32."""
        numbers = self.values.astype(np.float64)
        wrong = np.flatnonzero(~(np.abs(numbers) < _LARGEST))
        if len(wrong):
            value = f"column '{self.name}' holds {numbers[wrong[0]]:g} in row {wrong[0] + 1}"
            raise DataError(f"{path}: {value}; need finite numbers below {_LARGEST:g}")
        return numbers


def read_column(values: pa.ChunkedArray, name: str, path: Path, cell_format: CellFormat) -> Column:
    """Read a column as numbers or words.

    Args:
        values: the cells.
        name: name of the column.
        path: the file, for messages.
        cell_format: how the file writes numbers and missing cells.

    Raises `DataError` for lists, dates, bytes, long texts and the like.
    """
    import pyarrow as pa

    try:
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        if pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        kind = values.type
        if pa.types.is_null(kind):
            return Column(name, np.zeros(len(values)), None, np.ones(len(values), bool))
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return _numbers(values, name)
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view":
            return _words(values.cast(pa.large_string()), name, path, cell_format)
    except pa.ArrowException as error:
        raise DataError(f"{path}: column '{name}' cannot be read ({' '.join(str(error).split())[:200]})") from None
    raise DataError(
        f"{path}: column '{name}' holds {kind}; need numbers or words: make numbers of it, or leave it out "
        f"(drop: ['{name}'])"
    )


def refuse_missing(column: Column, path: Path, is_needed: bool) -> None:
    """Raise `DataError` for a column that lacks values: how many, and where the first is.

    Args:
        column: the column.
        path: the file, for messages.
        is_needed: the column cannot be left out.
    """
    if column.missing is None:
        return
    count, row = int(column.missing.sum()), int(np.argmax(column.missing)) + 1
    problem = {
        "null": f"lacks {count} values, the first in row {row}",
        "blank": f"is empty in row {row} ({count:,} of {len(column.missing):,} rows)",
        "nan": f"holds nan in row {row}; need finite numbers ({count:,} of {len(column.missing):,} rows lack one)",
    }[column.absence]
    also = "" if is_needed else f", or the column (drop: ['{column.name}'])"
    raise DataError(
        f"{path}: column '{column.name}' {problem}; fill them in, or leave out the rows (incomplete: drop){also}"
    )


def _numbers(values: pa.ChunkedArray, name: str) -> Column:
    import pyarrow.compute as pc

    missing = np.asarray(values.is_null().to_numpy()) if values.null_count else None
    filled = pc.fill_null(values, False if str(values.type) == "bool" else 0) if values.null_count else values
    stored = np.asarray(filled.to_numpy())
    if stored.dtype.kind == "f" and np.isnan(stored).any():
        absent = np.isnan(stored) if missing is None else np.isnan(stored) | missing
        return Column(name, np.where(np.isnan(stored), 0, stored), None, absent, "nan" if missing is None else "null")
    return Column(name, stored, None, missing)


def _words(values: Any, name: str, path: Path, cell_format: CellFormat) -> Column:
    """Words without spaces around them; numbers where all cells are numbers in the file's cell_format."""
    encoded = values.combine_chunks().dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    longest = max(map(len, texts), default=0)
    if longest > _LONGEST:
        raise DataError(
            f"{path}: column '{name}' holds texts of up to {longest} characters; need numbers or words: leave it out "
            f"(drop: ['{name}'])"
        )
    odd = next((text for text in texts if _CONTROL.search(text.strip())), None)
    if odd is not None:
        raise DataError(
            f"{path}: column '{name}' holds line breaks or control characters in {short_repr(odd)}; is a quote "
            f"not closed? Mend it, or leave the column out (drop: ['{name}'])"
        )
    codes = np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)).astype(np.int64)
    words = [text.strip() for text in texts]
    absent = {"", *(cell_format.missing or ())}
    words_present = sorted({word for word in words if word not in absent})
    rank = {word: code for code, word in enumerate(words_present)}
    codes = np.array([*(rank.get(word, -1) for word in words), -1], np.int64)[codes]  # the last one stands for null
    missing = codes < 0 if (codes < 0).any() else None
    absence: Literal["null", "blank"] = "blank" if "" in words and not values.null_count else "null"
    if not cell_format.typed or cell_format.decimal != "." or cell_format.thousands is not None:
        numbers = _all_numbers(words_present, cell_format)
        if numbers is not None and len(numbers):
            return Column(name, np.where(codes < 0, 0, numbers[codes]), None, missing, absence)
    return Column(name, codes, tuple(words_present), missing, absence)


def _all_numbers(words: Iterable[str], cell_format: CellFormat) -> np.ndarray | None:
    """The values of words that are all numbers, integers if all are; else None."""
    values = []
    for word in words:
        value = cell_format.number(word)
        if value is None:
            return None
        values.append(value)
    numbers = np.array(values)
    whole = bool((np.abs(numbers) < 2**53).all() and (numbers == np.floor(numbers)).all())
    return numbers.astype(np.int64) if whole else numbers


def to_ascii(word: str) -> str:
    """A word whose spaces, minus signs and full-width letters are those of ASCII."""
    if word.isascii():
        return word
    wide = {letter: chr(ord(letter) - 0xFEE0) for letter in word if "\uff01" <= letter <= "\uff5e"}
    return "".join(_SPACES.get(letter, wide.get(letter, letter)) for letter in word)
