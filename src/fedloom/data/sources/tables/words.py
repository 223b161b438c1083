"""Columns that look like something else: dates, ids, free text, copies of the label."""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedloom.core.errors import DataError, short_repr
from fedloom.core.text import lists_by_key
from fedloom.data.labels import MISSING_MARKS, missing_marks
from fedloom.data.sources.tables.columns import (
    CellFormat,
    Column,
    ReadingError,
    is_text,
    to_ascii,
    unreadable,
    without_types,
)
from fedloom.data.sources.tables.table_files import TableFile

if TYPE_CHECKING:
    import pyarrow as pa

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
# A number with a bound before it and a unit before or behind it; capital letters behind it may number houses (12A).
_TOKEN = r"[^\W\d_]{0,11}[²³\d]?(?:[/·^*.][^\W\d_]{1,8}[²³\d]?)*"
_CELL = re.compile(
    r"(?P<bound>[<>≤≥~≈]=?|(?:ca|approx|about)\.?)? ?(?P<before>[$€£¥₹]|(?:USD|EUR|GBP|CHF)(?= ))? ?"
    r"(?P<number>[-+]?(?:\d[\d.,'_ ]*|\.\d+)(?:[eE][-+]?\d+)?)"
    rf"(?P<unit> ?[%‰°$€£¥₹][CF]?|(?: ?[^\W\d_A-Z]| [A-Z]|[A-Z](?=[^\W\d_])){_TOKEN}(?: [^\W\d_]{_TOKEN})?)?"
)
_SCALES = {"k", "m", "b", "bn", "mio", "mrd", "tsd", "thousand", "million", "billion"}  # 2 k beside 2000
# What stands for a missing value among numbers, in any case; in a column of words it may be a category.
_PHRASES = (
    "n/k, nk, n.k., not known, unknown, unk, unbekannt, k.a., k. a., ka, keine angabe, nd, n.d., not done, no data, "
    "none, missing, pending, not available, not applicable, #value!, #div/0!, #ref!, #num!, #name?"
)
_NO_NUMBERS = {*map(str.casefold, MISSING_MARKS), *_PHRASES.split(", ")}
CATEGORIES = 1000  # different words that a column can become
_FEW = 10  # different amounts ("5 mg", "10 mg") that can be categories
_NAMES = 20  # different words that can be categories however few rows there are
# How files write numbers, the most usual first.
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


def word_kind(word: str, cell_format: CellFormat) -> str:
    """Return "number" (in the file's format), "spelled" (a number in another format), "amount" (a number with a unit),
    "date", "mark" (of a missing value), or "word"."""
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
    """Return notes on a column of words that becomes categories. Raises `DataError`, with such a cell and the key that
    reads it, if most cells are numbers (in the file's cell_format or another) or dates, or if there are nearly as many
    words as rows, which would become one feature each."""
    counts = column.counts()
    cells = sum(counts.values())
    words = lists_by_key((word_kind(word, cell_format), word) for word in counts)
    by_kind = Counter({kind: sum(counts[word] for word in listed) for kind, listed in words.items()})
    origin = f"{path}: column '{column.name}'"
    otherwise = f"name it in `categorical` if these are names, or leave it out (`drop: {json.dumps([column.name])}`)"
    numbers = by_kind["number"] + by_kind["spelled"]
    amounts = by_kind["amount"] if len(words.get("amount", ())) > _FEW else 0
    if 2 * by_kind["date"] > cells:
        raise ReadingError(
            f"{origin} holds dates or times ({by_kind['date']:,} of {cells:,} cells, the first in row "
            f"{column.first(words['date'])}: '{_shown(column, words['date'])}')",
            f"make numbers of them, such as days or hours, or {otherwise}",
        )
    if 2 * (numbers + amounts) > cells and by_kind["number"] < cells:
        odd = [word for word in counts if word not in words.get("number", ())]
        parts = [*words.get("spelled", ()), *map(number_part, words.get("amount", ()))]
        words["spelled"] = [part for part in parts if cell_format.number(part) is None]
        says = _says([*words.get("number", ()), *words["spelled"]], words, cell_format)
        how = "except in" if by_kind["number"] else "in another spelling in"
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
    notes, read = [], f"read as {len(counts)} categories"
    if words.keys() == {"number"}:
        notes.append(f"{origin} holds numbers that the file stores as words, {read}")
    if len(words.get("amount", ())) > 1:
        notes.append(f"{origin} holds numbers with units ('{_shown(column, words['amount'])}'), {read}")
    if "mark" in words and cell_format.missing is None:
        remedy = f"say `missing: {json.dumps(words['mark'])}` if it stands for a missing value"
        notes.append(f"{origin} holds '{words['mark'][0]}' in {by_kind['mark']:,} rows, read as a category; {remedy}")
    return notes


def measured(column: Column, path: Path, cell_format: CellFormat, is_number: bool = False) -> Column:
    """Return numbers in place of words that `refuse_misread` refuses, where their meaning is plain: numbers in one
    unit, words for a missing value, and bounds if the cell_format reads them. Other columns come back as they are.
    is_number: whether it holds numbers elsewhere, and so do words that could be categories."""
    try:
        if column.words is None or not (is_number or refuse_misread(column, path, cell_format) is None):
            return column
    except ReadingError:
        pass
    words = {word: cell for word in column.words or () if (cell := _read_cell(word, cell_format)) is not None}
    units = {unit for _, unit, _ in words.values()} - {""}
    unit, kinds = next(iter(units), ""), {unit.casefold() for unit in units}
    plain = [abs(value) for value, unit, _ in words.values() if value is not None and not unit]
    largest = max((abs(value) for value, _, _ in words.values() if value is not None), default=0)
    # Beside 51 %, a plain 0.5 may mean 50 %, and beside 2 k, a plain 2000 the same.
    is_unclear = plain and (kinds & _SCALES or ("%" in kinds and max(plain) <= 1 < largest))
    cells = {
        f"are in {unit}": [word for word, cell in words.items() if cell[1]],
        "count as missing": [word for word, cell in words.items() if cell[0] is None],
        "are read as that number (`bounds`)": [word for word, cell in words.items() if cell[2]],
    }
    counts, is_whole = column.counts(), len(words) == len(column.words or ())
    if not is_whole or not any(cells.values()) or len(kinds) > 1 or is_unclear or not (plain or units):
        return column
    sizes = {meaning: sum(counts[word] for word in cells[meaning]) for meaning in cells if cells[meaning]}
    total = f"{sum(counts.values()):,} cells"
    says = [f"{n:,} of {total}, such as '{cells[meaning][0][:40]}', {meaning}" for meaning, n in sizes.items()]
    missing = np.array([value is None for value, _, _ in words.values()])[column.values] | column.is_missing
    numbers = np.array([value or 0 for value, _, _ in words.values()])[column.values]
    return Column(column.name, numbers, None, missing if missing.any() else None, "null", unit, "; ".join(says))


def with_unreadable(column: Column, cell_format: CellFormat, most: int) -> Column:
    """Return a column of words as numbers, if its cell_format reads all but at most `most` cells and more than half."""
    numbers = [cell_format.number(word) for word in column.words or ()]
    is_odd = np.array([number is None for number in numbers])[column.values] & ~column.is_missing
    if not 0 < is_odd.sum() <= most or 2 * is_odd.sum() >= len(column.present_values):
        return column
    filled = next(number for number in numbers if number is not None)  # 0 would look like a mark of missing values
    values = np.array([filled if number is None else number for number in numbers])[column.values]
    return Column(column.name, values, None, column.missing, column.absence, unreadable=is_odd)


def unreadable_rows(
    files: Sequence[TableFile], tables: Sequence[Mapping[str, Column]], most: int
) -> tuple[int, list[str]]:
    """Return how many rows of `files` hold a word among numbers in the columns of their `tables`, and sentences that
    name them. Raises `DataError` for more than `most`."""
    rows = [unreadable(table.values(), file.rows) + 1 for table, file in zip(tables, files, strict=True)]
    if (count := sum(map(len, rows))) > most:
        raise DataError(f"{files[0].path}: {count:,} rows hold a word among numbers (max_bad_samples: {most})")
    says = f"rows with a word among numbers were left out (max_bad_samples: {most})"
    listed = [(file.path, ", ".join(map(str, of))) for file, of in zip(files, rows, strict=True) if len(of)]
    return count, [f"{path}: {says}: {numbers}" for path, numbers in listed]


def _read_cell(word: str, cell_format: CellFormat) -> tuple[int | float | None, str, str] | None:
    """Return number, unit and bound of a cell; no number if the value is missing. None if the meaning is not plain."""
    if (plain := cell_format.number(word)) is not None:
        return plain, "", ""
    if cell_format.missing != () and word.casefold() in _NO_NUMBERS:
        return None, "", ""
    match = _CELL.fullmatch(to_ascii(word))
    value = None if match is None else cell_format.number(match["number"].strip())
    if match is None or value is None or (match["bound"] and not cell_format.bounds) or re.match(r"\D*0\d", word):
        return None
    return value, (match["before"] or match["unit"] or "").strip(), match["bound"] or ""


def number_part(word: str) -> str:
    """Return the number in a cell with a unit or a bound, as it is written; other words as they are."""
    match = _CELL.fullmatch(to_ascii(word))
    return match["number"].strip() if match is not None else word


def odd_words(counts: Mapping[str, int]) -> list[str]:
    """Return the words among a column's numbers (rows by word), if they are at most five in a twentieth of rows."""
    odd = [word for word in counts if word_kind(word, CellFormat()) == "word" and not _CELL.fullmatch(to_ascii(word))]
    is_few = len(odd) <= 5 and 20 * sum(counts[word] for word in odd) <= sum(counts.values())
    return odd if is_few and len(odd) < len(counts) else []


def refuse_missing_marks(column: Column, path: Path, role: str) -> None:
    """Raise `DataError` for a label, owner or group (the column's role) that is written as missing values are."""
    counts = column.counts()
    marks = missing_marks(counts)
    if marks:
        count = sum(counts[mark] for mark in marks)
        meant = {"label": "a class", "owner": "an owner", "group": "a group"}[role]
        raise DataError(
            f"{path}: {role} '{column.name}' is '{marks[0]}' in {count:,} of {sum(counts.values()):,} rows, the first "
            f"{column.first(marks)}, which stands for a missing value as a rule; say `missing: {json.dumps(marks)}` "
            f"and `incomplete: drop` to leave these rows out, or `missing: []` if it is {meant}"
        )


def _says(numbers: Sequence[str], words: Mapping[str, Sequence[str]], cell_format: CellFormat) -> str:
    """Say which keys would read all these numbers, and the cells that are marks. words: by kind."""
    hints = []
    if words["spelled"]:
        fitting = [candidate for candidate in SPELLINGS if _fits(candidate, numbers, cell_format)]
        same_decimal = [candidate for candidate in fitting if candidate.decimal == cell_format.decimal == ","]
        says = [_keys(candidate, cell_format) for candidate in same_decimal or fitting]
        hints += [" or ".join(says)] if says else []
    matches = {word: _CELL.fullmatch(to_ascii(word)) for kind in ("amount", "word") for word in words.get(kind, ())}
    if bounds := [word for word, match in matches.items() if match is not None and match["bound"]]:
        hints.append(f"`bounds: value` to read '{bounds[0][:40]}' as {number_part(bounds[0])}")
    absent = sorted([*words.get("mark", ()), *(word for word, match in matches.items() if match is None)])
    if 0 < len(absent) <= _FEW:
        hints.append(f"`missing: {json.dumps(absent, ensure_ascii=False)}` if they stand for missing values")
    return f"say {' and '.join(hints)}" if hints else "write plain numbers there"


def _fits(candidate: CellFormat, numbers: Sequence[str], cell_format: CellFormat) -> bool:
    """Tell whether a spelling reads all numbers, and each mark that it adds to the present one occurs in them."""
    decimal = candidate.decimal if candidate.decimal == "," != cell_format.decimal else None
    marks = [mark for mark in (candidate.thousands, decimal) if mark is not None]
    is_used = all(any(mark in to_ascii(word) for word in numbers) for mark in marks)
    return is_used and all(candidate.number(word) is not None for word in numbers)


def _keys(candidate: CellFormat, cell_format: CellFormat) -> str:
    """Return the keys that turn the present spelling into another one."""
    keys = [] if candidate.thousands is None else [f'`thousands: "{candidate.thousands}"`']
    if candidate.decimal != cell_format.decimal or not keys:
        keys.append(f'`decimal: "{candidate.decimal}"`')
    return " with ".join(keys)


def _shown(column: Column, words: Sequence[str]) -> str:
    """Return the first of `words` that the column holds, shortened."""
    return (column.words or ())[int(column.values[column.first(words) - 1])][:40]


_THOUSAND, _THREE_DIGITS = 1000, 100


def grouped_digits(
    columns: Mapping[str, Column], texts: Callable[[Sequence[str]], Mapping[str, Column]], decimal: str, origin: str
) -> list[str]:
    """Return a sentence on each column of the file `origin` whose decimal mark ("." or ",") seems to separate
    thousands: 2.893 next to 788. texts: returns columns by name as they are written."""
    names = [name for name, column in columns.items() if column.is_numeric() and _may_be_thousands(column)]
    mark = "," if decimal == "." else "."
    sentences = []
    for name, column in texts(names).items() if names else ():
        words = column.counts()
        grouped = [word for word in words if re.fullmatch(rf"[-+]?[1-9]\d{{0,2}}{re.escape(decimal)}\d{{3}}", word)]
        whole = [word for word in words if re.fullmatch(r"[-+]?\d{1,3}", word)]
        if not grouped or not whole or len(grouped) + len(whole) < len(words):
            continue
        if any(word.endswith("0") for word in grouped) or _is_below(grouped, whole, decimal):  # no fraction ends in 0
            sentences.append(
                f"{origin}: column '{name}' holds whole numbers ('{whole[0]}') and fractions of exactly three digits "
                f'(\'{grouped[0]}\'), read as decimals; say `decimal: "{mark}"` with `thousands: "{decimal}"` if '
                "these are thousands"
            )
    return sentences


def _may_be_thousands(column: Column) -> bool:
    """Tell whether numbers are whole and below 1,000, or from 1 on with three decimals, and both occur."""
    numbers = np.abs(column.present_values).astype(np.float64)
    whole = numbers == np.floor(numbers)
    if whole.all() or not whole.any() or numbers.max() >= _THOUSAND or numbers[~whole].min() < 1:
        return False
    return bool(np.isclose(numbers * _THOUSAND, np.round(numbers * _THOUSAND), rtol=0, atol=1e-6).all())


def _is_below(grouped: Sequence[str], whole: Sequence[str], decimal: str) -> bool:
    """Tell whether numbers like 1.234, read as decimals, are below most whole ones, and these have three digits."""
    largest = max(abs(float(word.replace(decimal, "."))) for word in grouped)
    return max(largest, _THREE_DIGITS - 1) < float(np.median([abs(int(word)) for word in whole]))


def unused_marks(
    files: Sequence[TableFile], tables: Sequence[Mapping[str, Column]], cell_format: CellFormat
) -> list[str]:
    """Return a sentence on the cell_format's marks of missing values that no cell in use holds. tables: the columns in
    use of each of the files, with all rows."""
    unused = {mark for mark in cell_format.missing or () if mark}
    for file, columns in zip(files, tables, strict=True):
        lacking = [name for name, column in columns.items() if column.missing is not None and unused]
        for name, cells in file.texts(lacking).items():
            absent = cells.filter(np.asarray(columns[name].missing)).drop_null()
            unused -= {mark for mark in unused if _holds(absent, mark, cell_format)}
    if not unused:
        return []
    marks = ", ".join(short_repr(mark) for mark in sorted(unused))
    which = "which no cell of the columns in use holds; look how it is written"
    return [f"{files[0].path}: `missing` names {marks}, {which}"]


def _holds(cells: "pa.ChunkedArray", mark: str, cell_format: CellFormat) -> bool:
    """Tell whether one of the cells is a mark, as a text or as a number."""
    cells = without_types(cells)
    if not is_text(cells.type):
        numbers = cells.to_numpy()
        is_number = numbers.dtype.kind in "iuf"
        return is_number and bool(replace(cell_format, missing=(mark,)).stands_for_missing(numbers).any())
    words, value = {text.strip() for text in cells.unique().to_pylist()}, cell_format.number(mark)
    return mark in words or (value is not None and value in {cell_format.number(word) for word in words})
