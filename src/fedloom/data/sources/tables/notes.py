"""Features of a table that are hardly meant as such: ids, row numbers, copies of the label or the owner; and marks of
missing values that no cell holds, and thousands that are read as decimals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedloom.core.errors import short_repr
from fedloom.data.sources.tables.columns import CellFormat, Column, is_text
from fedloom.data.sources.tables.table_files import TableFile

if TYPE_CHECKING:
    import pyarrow as pa

_ID_NAME = re.compile(r"(?i:(?:.*[_\s.-])?(?:ids?|uid|guid|uuid|mrn|ssn))|.*[a-z](?:ID|Id)")
_KEY_NAME = re.compile(r"(?:.*[_\s.-])?(?:index|idx|key|rownames|row|nr|no)", re.IGNORECASE)
_ROWS = 10  # below, everything looks like an id
_UNIQUE = 20
_SAMPLE = 1000
_LISTED = 5
_THOUSAND, _THREE_DIGITS = 1000, 100


def suspicious_features(
    columns: Mapping[str, Column], labels: np.ndarray, owners: np.ndarray | None, origin: str
) -> list[str]:
    """A sentence on each kind of suspicious feature among `columns`; `labels`, `owners`: ids [n] of the same rows."""
    counting, ids, named, of_label, of_owner = [], [], [], [], []
    if len(labels) < _ROWS:
        return []
    for name, column in columns.items():
        values = column.values
        if column.words is None and values.dtype.kind != "b" and not column.is_whole():
            continue
        if column.words is None and _counts_rows(values):
            counting.append(name)
        elif column.words is None and _is_id(name, values):
            ids.append(name)
        elif _ID_NAME.fullmatch(name):
            named.append(name)
        elif _determines(values, labels):
            of_label.append(name)
        elif owners is not None and _determines(values, owners):
            of_owner.append(name)
    sentences = [
        _sentence(counting, origin, "count the rows: an index is no measurement"),
        _sentence(ids, origin, "hold a different whole number in nearly every row, as ids do"),
        _sentence(named, origin, "have the name of an id"),
        _sentence(of_label, origin, "have one value for each class: they say the label itself"),
        _sentence(of_owner, origin, "have one value for each owner: they say whose a row is"),
    ]
    return [sentence for sentence in sentences if sentence]


def _sentence(names: Sequence[str], origin: str, why: str) -> str:
    if not names:
        return ""
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    shown = ", ".join(f"'{name}'" for name in names[:_LISTED])
    return f"{origin}: features that {why}: {shown}{rest}; leave them out with `drop` if they are not meant"


def _counts_rows(values: np.ndarray) -> bool:
    """Whether the values are first, first + 1, first + 2, ..., or the same downwards."""
    start = values[:_SAMPLE].astype(np.float64)
    steps = np.diff(start)
    if abs(steps[0]) != 1 or not (steps == steps[0]).all():
        return False
    return bool((np.diff(values.astype(np.float64)) == steps[0]).all())


def _is_id(name: str, values: np.ndarray) -> bool:
    """Whether every row has a value of its own, or nearly every row and the column has the name of an id or a key."""
    is_named = bool(_ID_NAME.fullmatch(name) or _KEY_NAME.fullmatch(name))
    start = values[:_SAMPLE]
    if len(np.unique(start)) < (len(start) / 2 if is_named else len(start)):  # soon done for nearly all columns
        return False
    total = len(np.unique(values))
    return 2 * total > len(values) if is_named else total == len(values) >= _UNIQUE


def _determines(values: np.ndarray, groups: np.ndarray) -> bool:
    """Whether values and groups stand for each other, one to one."""
    number = int(groups.max()) + 1
    if len(np.unique(values[:_SAMPLE])) > number:  # soon done for nearly all columns
        return False
    pairs = np.unique(np.stack([values.astype(np.float64), groups]), axis=1)
    return bool(1 < pairs.shape[1] == len(np.unique(pairs[0])) == len(np.unique(pairs[1])))


def grouped_digits(
    columns: Mapping[str, Column], texts: Callable[[Sequence[str]], Mapping[str, Column]], decimal: str, origin: str
) -> list[str]:
    """A sentence on each column whose decimal mark seems to stand between thousands: 2.893 beside 788.

    Args:
        columns: the features that were read with this decimal mark.
        texts: gives columns by name as they are written.
        decimal: the character before decimals, "." or ",".
        origin: name of the file in the sentence.
    """
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
    """Whether numbers are whole and below 1,000, or from 1 on with three decimals, and both occur."""
    numbers = np.abs(column.values if column.missing is None else column.values[~column.missing]).astype(np.float64)
    whole = numbers == np.floor(numbers)
    if whole.all() or not whole.any() or numbers.max() >= _THOUSAND or numbers[~whole].min() < 1:
        return False
    return bool(np.isclose(numbers * _THOUSAND, np.round(numbers * _THOUSAND), rtol=0, atol=1e-6).all())


def _is_below(grouped: Sequence[str], whole: Sequence[str], decimal: str) -> bool:
    """Whether the grouped numbers, read as decimals, are below most of the whole ones, and these have three digits."""
    largest = max(abs(float(word.replace(decimal, "."))) for word in grouped)
    return max(largest, _THREE_DIGITS - 1) < float(np.median([abs(int(word)) for word in whole]))


def unused_marks(
    files: Sequence[TableFile], tables: Sequence[Mapping[str, Column]], cell_format: CellFormat
) -> list[str]:
    """A sentence on the marks of missing values that no cell of the columns in use holds, or nothing.

    Args:
        files: the files.
        tables: the columns of each file that are used, with all rows.
        cell_format: how cells are written, with the marks.
    """
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


def _holds(cells: pa.ChunkedArray, mark: str, cell_format: CellFormat) -> bool:
    """Whether one of the cells is a mark, as a text or as a number."""
    import pyarrow as pa

    if pa.types.is_dictionary(cells.type):
        cells = cells.cast(cells.type.value_type)
    if pa.types.is_decimal(cells.type):
        cells = cells.cast(pa.float64())
    if not is_text(cells.type):
        numeric = pa.types.is_integer(cells.type) or pa.types.is_floating(cells.type)
        return numeric and bool(replace(cell_format, missing=(mark,)).stands_for_missing(cells.to_numpy()).any())
    words, value = {text.strip() for text in cells.unique().to_pylist()}, cell_format.exact(mark)
    return mark in words or (value is not None and value in {cell_format.exact(word) for word in words})
