"""Columns of a table: numbers as stored or words, and which cells are missing."""

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
_INTEGER = re.compile(r"[-+]?\d{1,300}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")
_SPACES = {"\u00a0": " ", "\u202f": " ", "\u2009": " ", "\u2212": "-", "\u2019": "'"}


class ReadingError(DataError):
    """A file that some key of its source would read. without_keys: the advice where a finished run fixes the keys."""

    def __init__(self, problem: str, advice: str, without_keys: str = "write it as the run's own files are") -> None:
        self.problem, self.advice, self.without_keys = problem, advice, without_keys
        super().__init__(f"{problem}; {advice}")

    def __reduce__(self) -> tuple[Any, ...]:
        # By default pickle passes the joined text as the only argument, and errors cross processes as pickles.
        return type(self), (self.problem, self.advice, self.without_keys)


@dataclass(frozen=True, slots=True)
class CellFormat:
    """How a file writes its cells; keys as in `TableSource`. A `typed` file states the kinds of its columns: its texts
    become numbers only where `decimal` or `thousands` asks for it. bounds: whether <40 is read as 40."""

    decimal: str = "."
    thousands: str | None = None
    missing: tuple[str, ...] | None = None
    typed: bool = False
    bounds: bool = False

    def number(self, word: str) -> int | float | None:
        """Return the value of a word that is a number in this format (an int keeps all its digits), else None."""
        plain = self._plain(word)
        return None if plain is None else int(plain) if _INTEGER.fullmatch(plain) else float(plain)

    def spelling(self, word: str) -> str:
        """Return a number without marks, plus sign and trailing zeros, other words as they are: 1.0 is 1, 01 stays."""
        plain = self._plain(word)
        if plain is None:
            return word
        plain = plain.removeprefix("+")
        short = plain.rstrip("0").rstrip(".") if "." in plain and "e" not in plain.lower() else plain
        return "0" if short in ("-0", "-", "") else short

    def stands_for_missing(self, numbers: np.ndarray) -> np.ndarray:
        """Return which of the numbers [n] equal a mark of a missing value, in whatever spelling; bool [n]."""
        absent = np.zeros(len(numbers), bool)
        for mark in self.missing or ():
            value = self.number(mark)
            if value is None or not np.isfinite(float(value)):
                continue
            if numbers.dtype.kind == "f":
                absent |= numbers == numbers.dtype.type(value)
            elif numbers.dtype.kind in "iu" and value == int(value):
                absent |= numbers == int(value)
        return absent

    def _plain(self, word: str) -> str | None:
        """Return a number as Python writes it, or None for a word that is no number in this format."""
        plain = to_ascii(word)
        if self.thousands is not None:
            groups = rf"[-+]?[1-9]\d{{0,2}}(?:{re.escape(self.thousands)}\d{{3}})+(?:{re.escape(self.decimal)}\d*)?"
            if re.fullmatch(groups, plain):
                plain = plain.replace(self.thousands, "")
        if self.decimal != ".":
            plain = plain.replace(".", " ").replace(self.decimal, ".")
        return plain if _NUMBER.fullmatch(plain) else None


@dataclass(frozen=True, slots=True)
class Column:
    """One column [n]. `values`: numbers as stored, or for words the index into `words`, the different ones that occur.
    missing: bool [n], cells without a value, or None; their `values` mean nothing. unit: of numbers that are written
    with one. note: how other cells than plain numbers became numbers. unreadable: bool [n], words among numbers."""

    name: str
    values: np.ndarray
    words: tuple[str, ...] | None = None
    missing: np.ndarray | None = None
    absence: Literal["null", "blank", "nan"] = "null"  # how a cell lacks its value: null or mark, empty text, NaN
    unit: str = ""
    note: str = ""
    unreadable: np.ndarray | None = None

    @property
    def is_missing(self) -> np.ndarray:
        return np.zeros(len(self.values), bool) if self.missing is None else self.missing

    @property
    def present_values(self) -> np.ndarray:
        return self.values if self.missing is None else self.values[~self.missing]

    def rows(self, rows: np.ndarray) -> "Column":
        """Return some rows, without the words that do not occur there; the code of a missing word is -1."""
        values, missing = self.values[rows], self.is_missing[rows]
        lacking = missing if missing.any() else None
        if self.words is None:
            return Column(self.name, values, None, lacking)
        present = np.unique(values[~missing])
        codes = np.where(missing, -1, np.searchsorted(present, values))
        return Column(self.name, codes, tuple(self.words[code] for code in present.tolist()), lacking)

    def counts(self) -> dict[str, int]:
        """Return how many cells hold each word; empty for numbers."""
        words = self.words
        if words is None:
            return {}
        counts = np.bincount(self.present_values, minlength=len(words)).tolist()
        return {word: count for word, count in zip(words, counts, strict=True) if count}

    def first(self, words: Collection[str]) -> int:
        """Return the first row, from 1 on, that holds one of these words."""
        codes = [code for code, word in enumerate(self.words or ()) if word in words]
        return int(np.argmax(np.isin(self.values, codes) & ~self.is_missing)) + 1

    def labels(self) -> np.ndarray:
        """Return the class or owner of each row: words, or numbers; whole floats become integers."""
        if self.words is not None:
            return np.array(self.words, np.str_)[self.values] if self.words else np.zeros(0, np.str_)
        if self.values.dtype.kind == "b":
            return self.values.astype(np.str_)
        return self.values.astype(np.int64) if self.is_whole() else self.values

    def is_numeric(self) -> bool:
        """Tell whether these are numbers, neither words nor booleans."""
        return self.words is None and self.values.dtype.kind in "iuf"

    def is_whole(self) -> bool:
        """Tell whether these are whole numbers, even if a program wrote them as floats."""
        if self.words is not None or self.values.dtype.kind in "iu":
            return self.words is None
        # From 2**53 on every float is whole, which says nothing about the column.
        small = self.values.dtype.kind == "f" and bool((np.abs(self.values.astype(np.float64)) < 2**53).all())
        return small and bool((self.values == np.floor(self.values)).all())

    def as_words(self) -> "Column":
        """Return the same column with its numbers as names."""
        if self.words is not None:
            return self
        numbers, codes = np.unique(self.values * 1, return_inverse=True)
        names = [number_name(value) for value in numbers.tolist()]
        if len(set(names)) < len(names):  # they differ in the last digit
            names = [repr(value) for value in numbers.tolist()]
        return replace(self, values=codes, words=tuple(names))

    def as_numbers(self, path: Path) -> np.ndarray:
        """Return measurements float64 [n]. Raises `DataError` if one is infinite or too large for float32."""
        numbers = self.values.astype(np.float64)
        wrong = np.flatnonzero(~(np.abs(numbers) < _LARGEST))
        if len(wrong):
            value = f"column '{self.name}' holds {numbers[wrong[0]]:g} in row {wrong[0] + 1}"
            raise DataError(f"{path}: {value}; need finite numbers below {_LARGEST:g}")
        return numbers


def read_column(values: "pa.ChunkedArray", name: str, path: Path, cell_format: CellFormat) -> Column:
    """Read the column `name` of a file as numbers or words. Raises `DataError`, with the path, for lists and long
    texts."""
    import pyarrow as pa

    try:
        values = without_types(values)
        kind = values.type
        if pa.types.is_null(kind):
            return Column(name, np.zeros(len(values)), None, np.ones(len(values), bool))
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            return _numbers(values, name, cell_format)
        if is_text(kind):
            return _words(values, name, path, cell_format)
    except pa.ArrowException as error:
        raise DataError(f"{path}: column '{name}' cannot be read ({' '.join(str(error).split())[:200]})") from None
    raise ReadingError(
        f"{path}: column '{name}' holds {kind}",
        f"need numbers or words: make numbers of it, or leave it out (drop: ['{name}'])",
    )


def refuse_missing(column: Column, path: Path, is_needed: bool) -> None:
    """Raise `DataError` if a column of a file lacks values; the advice to drop a column that is_needed is left out."""
    if column.missing is None:
        return
    count, row = int(column.missing.sum()), int(np.argmax(column.missing)) + 1
    problem = {
        "null": f"lacks {count} values, the first in row {row}",
        "blank": f"is empty in row {row} ({count:,} of {len(column.missing):,} rows)",
        "nan": f"holds nan in row {row}; need finite numbers ({count:,} of {len(column.missing):,} rows lack one)",
    }[column.absence] + (f" ({column.note})" if column.note else "")
    also = "" if is_needed else f", or the column (drop: ['{column.name}']), or impute them (incomplete: impute)"
    raise ReadingError(
        f"{path}: column '{column.name}' {problem}",
        f"fill them in, or leave out the rows (incomplete: drop){also}",
        "fill them in, or take these rows out of the file",
    )


def read_texts(values: "pa.ChunkedArray", name: str, path: Path, cell_format: CellFormat) -> Column:
    """Read the values of the column `name` as words without spaces around them, even if all are numbers in the file's
    cell_format. Raises `DataError` for long texts, line breaks and control characters."""
    import pyarrow as pa

    # 64-bit offsets, because the texts of all chunks together may pass 2 GiB.
    encoded = values.cast(pa.large_string()).combine_chunks().dictionary_encode()
    texts = encoded.dictionary.to_pylist()
    longest = max(map(len, texts), default=0)
    if longest > _LONGEST:
        raise ReadingError(
            f"{path}: column '{name}' holds texts of up to {longest} characters",
            f"need numbers or words: leave it out (drop: ['{name}'])",
        )
    odd = next((text for text in texts if _CONTROL.search(text.strip())), None)
    if odd is not None:
        raise ReadingError(
            f"{path}: column '{name}' holds line breaks or control characters in {short_repr(odd)}",
            f"is a quote not closed? Mend it, or leave the column out (drop: ['{name}'])",
            "is a quote not closed? Mend it",
        )
    codes = np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)).astype(np.int64)
    words = [text.strip() for text in texts]
    absent = {"", *(cell_format.missing or ())}
    words_present = sorted({word for word in words if word not in absent})
    rank = {word: code for code, word in enumerate(words_present)}
    codes = np.array([*(rank.get(word, -1) for word in words), -1], np.int64)[codes]  # the last one stands for null
    missing = codes < 0 if (codes < 0).any() else None
    absence: Literal["null", "blank"] = "blank" if "" in words and not values.null_count else "null"
    return Column(name, codes, tuple(words_present), missing, absence)


def without_types(values: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Return the cells of a dictionary or of exact decimals as plain texts or numbers."""
    import pyarrow as pa

    values = values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values
    return values.cast(pa.float64()) if pa.types.is_decimal(values.type) else values


def is_text(kind: "pa.DataType") -> bool:
    """Tell whether a column of this type holds texts."""
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def incomplete_rows(columns: Iterable[Column], rows: int) -> np.ndarray:
    """Return which of the rows lack a value in one of the columns, bool [rows]."""
    incomplete = np.zeros(rows, bool)
    for column in columns:
        incomplete |= column.is_missing
    return incomplete


def unreadable(columns: Iterable[Column], rows: int) -> np.ndarray:
    """Return the numbers of the rows in which a column holds a word among numbers."""
    odd = [column.unreadable for column in columns if column.unreadable is not None]
    return np.flatnonzero(np.any([np.zeros(rows, bool), *odd], axis=0))


def _numbers(values: "pa.ChunkedArray", name: str, cell_format: CellFormat) -> Column:
    import pyarrow.compute as pc

    missing = np.asarray(values.is_null().to_numpy()) if values.null_count else None
    # Filled first: with nulls, pyarrow would turn integers into floats, which lose digits beyond 2**53.
    filled = pc.fill_null(values, False if str(values.type) == "bool" else 0) if values.null_count else values
    stored = np.asarray(filled.to_numpy())
    absence: Literal["null", "nan"] = "null"
    if stored.dtype.kind == "f" and np.isnan(stored).any():
        absence = "nan" if missing is None else "null"
        missing = np.isnan(stored) if missing is None else np.isnan(stored) | missing
        stored = np.where(np.isnan(stored), stored.dtype.type(0), stored)
    return _without_marks(Column(name, stored, None, missing, absence), cell_format)


def _words(values: Any, name: str, path: Path, cell_format: CellFormat) -> Column:
    """Read words, or numbers if all cells are numbers in the file's format."""
    column = read_texts(values, name, path, cell_format)
    if cell_format.typed and cell_format.decimal == "." and cell_format.thousands is None:
        return column
    numbers = _all_numbers(column.words or (), cell_format)
    if numbers is None or not len(numbers):
        return column
    stored = numbers[column.values] if column.missing is None else np.where(column.missing, 0, numbers[column.values])
    return _without_marks(replace(column, values=stored, words=None), cell_format)


def _without_marks(column: Column, cell_format: CellFormat) -> Column:
    absent = cell_format.stands_for_missing(column.values)
    if not absent.any():
        return column
    return replace(column, missing=absent | column.is_missing, absence="null")


def _all_numbers(words: Iterable[str], cell_format: CellFormat) -> np.ndarray | None:
    """Return the values of words that are all numbers, as integers if all are whole; else None."""
    values: list[int | float] = []
    for word in words:
        value = cell_format.number(word)
        if value is None:
            return None
        values.append(value)
    if all(isinstance(value, int) and abs(value) < 2**63 for value in values):
        return np.array(values, np.int64)
    numbers = np.array(values, np.float64)
    whole = bool((np.abs(numbers) < 2**53).all() and (numbers == np.floor(numbers)).all())
    return numbers.astype(np.int64) if whole else numbers


def number_name(value: float) -> str:
    """Return a number as the name of a category."""
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def to_ascii(word: str) -> str:
    """Replace typographic spaces, minus signs and full-width letters by those of ASCII."""
    if word.isascii():
        return word
    wide = {letter: chr(ord(letter) - 0xFEE0) for letter in word if "\uff01" <= letter <= "\uff5e"}
    return "".join(_SPACES.get(letter, wide.get(letter, letter)) for letter in word)
