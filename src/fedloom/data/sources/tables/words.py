"""Columns of words that look like something else: numbers in another spelling, dates, free text, ids, missing marks."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedloom.core.errors import DataError
from fedloom.data.labels import MISSING_MARKS, missing_marks
from fedloom.data.sources.tables.columns import CellFormat, Column, ReadingError, to_ascii

_MONTH = "(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?: ?[ap]\.?m\.?)?(?: ?(?:z|utc|[-+]\d{2}:?\d{2}))?"
_DATE = re.compile(
    rf"(?:(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/.]\d{{1,2}}[-/.](?:\d{{4}}|\d{{2}})"
    rf"|\d{{1,2}}[-. ]*{_MONTH}[-., ]*(?:\d{{4}}|\d{{2}})|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}})"
    rf"(?:[ t]{_CLOCK})?|{_CLOCK})",
    re.IGNORECASE,
)
_AMOUNT = re.compile(
    r"(?:[<>≤≥~≈±]=?|[$€£¥₹]|(?:USD|EUR|GBP|CHF) )? ?[-+]?\d[\d.,' ]*(?:[eE][-+]?\d+)?"
    r" ?(?:%|‰|°[CF]?|[$€£¥₹]|(?<= )[^\W\d_][\w/³²^]{0,9})?"
)
CATEGORIES = 1000  # different words that a column can become
_FEW = 10  # different amounts ("5 mg", "10 mg") that can be categories
_NAMES = 20  # different words that can be categories however few rows there are
SPELLINGS = (
    CellFormat(),
    CellFormat(decimal=","),
    CellFormat(thousands=","),
    CellFormat(decimal=",", thousands="."),
    CellFormat(thousands=" "),
    CellFormat(decimal=",", thousands=" "),
    CellFormat(thousands="'"),
    CellFormat(thousands="_"),
)
"""How files write numbers, the most usual first."""


def word_kind(word: str, cell_format: CellFormat) -> str:
    """How a word looks: "number" (in the file's format), "spelled" (a number in another one), "amount" (a number with
    a unit), "date", "mark" (of a missing value), or "word"."""
    if word in MISSING_MARKS:
        return "mark"
    if cell_format.number(word) is not None:
        return "number"
    if not any(letter.isdigit() for letter in word):
        return "word"
    if any(candidate.number(word) is not None for candidate in SPELLINGS):
        return "spelled"
    return "date" if _DATE.fullmatch(word) else "amount" if _AMOUNT.fullmatch(word) else "word"


def refuse_misread(column: Column, path: Path, cell_format: CellFormat) -> list[str]:
    """Return notes on a column of words that is read as categories.

    Args:
        column: the column.
        path: the file, for messages.
        cell_format: how the file writes numbers.

    Raises `DataError` for one that is mostly numbers or dates, and for one with nearly as many words as rows: it would
    become one feature for each value. The line says which cells these are, and which key reads them as meant.
    """
    counts = column.counts()
    cells = sum(counts.values())
    kinds = {word: word_kind(word, cell_format) for word in counts}
    by_kind: Counter[str] = Counter()
    for word, count in counts.items():
        by_kind[kinds[word]] += count
    words = {kind: [word for word in counts if kinds[word] == kind] for kind in by_kind}
    origin, otherwise = f"{path}: column '{column.name}'", _otherwise(column.name)
    numbers = by_kind["number"] + by_kind["spelled"]
    amounts = by_kind["amount"] if len(words.get("amount", ())) > _FEW else 0
    if 2 * by_kind["date"] > cells:
        raise ReadingError(
            f"{origin} holds dates or times ({by_kind['date']:,} of {cells:,} cells, the first in row "
            f"{column.first(words['date'])}: '{_shown(column, words['date'])}')",
            f"make numbers of them, such as days or hours, or {otherwise}",
        )
    if 2 * (numbers + amounts) > cells and by_kind["number"] < cells:
        odd = [word for word in counts if kinds[word] != "number"]
        says = _says([word for word in counts if kinds[word] in ("number", "spelled")], words, cell_format)
        how = "but for" if by_kind["number"] else "in another spelling in"
        raise ReadingError(
            f"{origin} holds numbers {how} {cells - by_kind['number']:,} of {cells:,} cells, the first in row "
            f"{column.first(odd)}: '{_shown(column, odd)}'",
            f"{says}, or {otherwise}",
        )
    if 2 * len(counts) > cells > _NAMES // 2 and (len(counts) > _NAMES or len(counts) == cells):
        if by_kind["number"] == cells:
            raise ReadingError(
                f"{origin} holds {len(counts):,} numbers stored as words",
                f"store them as numbers, or {otherwise}",
                "store them as numbers",
            )
        many = (
            f"{len(counts)} different words, more than {CATEGORIES}"
            if len(counts) > CATEGORIES
            else f"{len(counts):,} different words in {cells:,} rows, the first '{_shown(column, list(counts))}'"
        )
        raise ReadingError(f"{origin} holds {many}", f"an id or free text teaches nothing: {otherwise}")
    return _notes(column, origin, counts, words, cell_format)


def refuse_missing_marks(column: Column, path: Path, role: str) -> None:
    """Raise `DataError` for a label or an owner that is written as missing values are.

    Args:
        column: the column.
        path: the file, for messages.
        role: what the column is: "label" or "owner".
    """
    counts = column.counts()
    marks = missing_marks(counts)
    if marks:
        count, meant = sum(counts[mark] for mark in marks), {"label": "a class", "owner": "an owner"}[role]
        raise DataError(
            f"{path}: {role} '{column.name}' is '{marks[0]}' in {count:,} of {sum(counts.values()):,} rows, the first "
            f"{column.first(marks)}, which stands for a missing value as a rule; say `missing: {json.dumps(marks)}` "
            f"and `incomplete: drop` to leave these rows out, or `missing: []` if it is {meant}"
        )


def _notes(
    column: Column, origin: str, counts: dict[str, int], words: dict[str, list[str]], cell_format: CellFormat
) -> list[str]:
    """Return notes on unusual cells of a column that is read as categories."""
    notes, read = [], f"read as {len(counts)} categories"
    if words.keys() == {"number"}:
        notes.append(f"{origin} holds numbers that the file stores as words, {read}")
    if len(words.get("amount", ())) > 1:
        notes.append(f"{origin} holds numbers with units ('{_shown(column, words['amount'])}'), {read}")
    if "mark" in words and cell_format.missing is None:
        marks = words["mark"]
        count = sum(counts[mark] for mark in marks)
        notes.append(
            f"{origin} holds '{marks[0]}' in {count:,} rows, read as a category; say `missing: {json.dumps(marks)}` if "
            "it stands for a missing value"
        )
    return notes


def _says(numbers: Sequence[str], words: Mapping[str, Sequence[str]], cell_format: CellFormat) -> str:
    """Which keys would read all of `numbers` and the cells that are marks; `words`: by kind."""
    hints = []
    if "spelled" in words:
        fitting = [candidate for candidate in SPELLINGS if _fits(candidate, numbers, cell_format)]
        of_this_decimal = [candidate for candidate in fitting if candidate.decimal == cell_format.decimal == ","]
        says = [_keys(candidate, cell_format) for candidate in of_this_decimal or fitting]
        hints += [" or ".join(says)] if says else []
    if "mark" in words:
        hints.append(f"`missing: {json.dumps(sorted(words['mark']))}` if they stand for missing values")
    return f"say {' and '.join(hints)}" if hints else "write plain numbers there"


def _fits(candidate: CellFormat, numbers: Sequence[str], cell_format: CellFormat) -> bool:
    """Whether this spelling reads all `numbers`, and each mark that it adds to the present one is in some of them."""
    decimal = candidate.decimal if candidate.decimal == "," != cell_format.decimal else None
    marks = [mark for mark in (candidate.thousands, decimal) if mark is not None]
    is_used = all(any(mark in to_ascii(word) for word in numbers) for mark in marks)
    return is_used and all(candidate.number(word) is not None for word in numbers)


def _keys(candidate: CellFormat, cell_format: CellFormat) -> str:
    """The keys that make the present spelling to another one."""
    keys = [] if candidate.thousands is None else [f'`thousands: "{candidate.thousands}"`']
    if candidate.decimal != cell_format.decimal or not keys:
        keys.append(f'`decimal: "{candidate.decimal}"`')
    return " with ".join(keys)


def _shown(column: Column, words: Sequence[str]) -> str:
    """The first of `words` that the column holds, shortened."""
    row = column.first(words) - 1
    return (column.words or ())[int(column.values[row])][:40]


def _otherwise(name: str) -> str:
    return f"name it in `categorical` if these are names, or leave it out (`drop: {json.dumps([name])}`)"
