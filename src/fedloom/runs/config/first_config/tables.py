"""The keys that read a table: separator, spelling of numbers, label, owner, and the columns that teach nothing."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.errors import ConfigError, DataError, suggest_name
from fedloom.data.labels import MISSING_MARKS, missing_marks
from fedloom.data.sources.source import SOURCES, configure_source
from fedloom.data.sources.tables.columns import CellFormat, Column, incomplete_rows
from fedloom.data.sources.tables.formats import FileTable
from fedloom.data.sources.tables.table_files import NO_HEADER, TableFile, looks_like_a_row, start_of_text
from fedloom.data.sources.tables.words import SPELLINGS, refuse_misread

_SEPARATORS = (",", ";", "\t", "|")
_LABELS = re.compile(
    r"(y|label|labels|class|target|outcome|diagnosis|category|species|result|response|ill|disease|readmitted|churn"
    r"|default|status|sentiment|survived|quality)",
    re.IGNORECASE,
)
_OWNERS = re.compile(
    r"(owner|client|hospital|clinic|site|cent(er|re)|institution|ward|user|device|writer|subject|station|region|branch"
    r"|bank|school|store|shop|plant|city|country|state|operator|doctor|patient|machine)s?([ _-]?(id|no|nr|name|code))?",
    re.IGNORECASE,
)
_MAX_CLASSES = 100
_MIN_ROWS_OF_OWNER = 10
_WORDS = 1000  # of a column, in which numbers are sought
_ID = re.compile(r"(?i:(.*[ _-])?(id|uuid|guid|index|row|number|nr|no))|.*[a-z]I[dD]")
Ask = Callable[[str, Sequence[str], str], str]
"""Ask a person: question, choices and default -> answer."""


def table_keys(
    path: Path, source: str, label: str | None, owner: str | None, ask: Ask | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the keys of the source, "csv" or "parquet", for the file `path`, and the reasons for them by key.

    The label and the owner are columns; None chooses them, by `ask` if there is one; the owner "none" takes none.
    Raises `ConfigError` or `DataError` for a file that cannot be read, or without a column of classes.
    """
    keys: dict[str, Any] = {"source": source, "path": str(path)}
    reasons: dict[str, str] = {}
    if source == "csv":
        keys |= _separator(path, reasons)
    file = _reader(keys, label or "label").opened(path)
    names = [name for name in file.columns if name not in file.index]
    if len(names) < 2:
        first = f" ('{names[0]}')" if names else ""
        raise DataError(f"{path}: has {len(names)} column{first}; need a label and at least one column to learn from")
    if source == "csv" and looks_like_a_row(names):
        raise DataError(f"{path}: {NO_HEADER}")
    keys |= _spelling(keys, path, names, reasons)
    reader = _reader(keys, label or "label")
    file = reader.opened(path)
    columns = _columns(reader, file, names)
    keys["label"] = _label(path, columns, names, label, ask, reasons)
    chosen_owner = _owner(path, columns, names, keys["label"], owner, ask, reasons)
    if chosen_owner is not None:
        keys["owner"] = chosen_owner
    of_names = [name for name in (keys["label"], chosen_owner) if name in columns]
    if "missing" not in keys and (with_marks := [name for name in of_names if missing_marks(columns[name].counts())]):
        keys["missing"] = sorted({mark for name in with_marks for mark in missing_marks(columns[name].counts())})
        reasons["missing"] = f"cells of {' and '.join(with_marks)} that stand for a missing value"
        reader = _reader(keys, keys["label"])
        file = reader.opened(path)
        columns = _columns(reader, file, names)
    dropped = _teaching_nothing(reader, file, [name for name in names if name not in (keys["label"], chosen_owner)])
    if dropped:
        keys["drop"] = list(dropped)
        reasons["drop"] = "; ".join(f"{name}: {reason}" for name, reason in dropped.items())
    incomplete = incomplete_rows((column for name, column in columns.items() if name not in dropped), file.rows)
    if incomplete.any():
        keys["incomplete"] = "drop"
        reasons["incomplete"] = f"{int(incomplete.sum()):,} of {file.rows:,} rows lack a value"
    return keys, reasons


def _reader(keys: Mapping[str, Any], label: str) -> FileTable:
    fields = {name: value for name, value in keys.items() if name != "source"}
    reader = configure_source(SOURCES.get(keys["source"]), **{"label": label, **fields})
    if not isinstance(reader, FileTable):
        raise TypeError(f"{keys['source']} is no table")
    return reader


def _columns(reader: FileTable, file: TableFile, names: Sequence[str]) -> dict[str, Column]:
    """Return the columns that can be read; possible labels and owners are read as names, which keeps 01 and 1 apart."""
    columns = {name: column for name in names if (column := _column_or_none(reader, file, name)) is not None}
    few = {}
    for name, column in columns.items():
        is_whole = column.is_numeric() and bool((column.values == np.floor(column.values)).all())
        if is_whole and 2 * len(np.unique(column.values)) <= file.rows:
            few[name] = column
    return columns | reader.names([file], [few])[0]


def _column_or_none(reader: FileTable, file: TableFile, name: str) -> Column | None:
    try:
        return reader.column(file, name)
    except DataError:  # dates, lists or texts, which no key but `drop` reads
        return None


# -- how the file is written -------------------------------------------------------------------------------------------
def _separator(path: Path, reasons: dict[str, str]) -> dict[str, Any]:
    """Return the keys `separator` and `encoding`, where the file needs them."""
    raw = start_of_text(path, 2**20)
    header = raw.splitlines()[0].decode("latin-1") if raw.strip() else ""
    keys: dict[str, Any] = {}
    separator = max(_SEPARATORS, key=header.count)
    if header.count(separator) and separator != ",":
        keys["separator"] = separator
        reasons["separator"] = "the character between cells"
    if not raw.startswith((b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b", b"BZh")) and not _is_utf8(raw):
        keys["encoding"] = "latin-1"
        reasons["encoding"] = "the file is not UTF-8; look at its accents, they may need cp1252 or another encoding"
    return keys


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start > len(raw) - 4  # a character that the end of the sample has cut
    return True


def _spelling(keys: Mapping[str, Any], path: Path, names: Sequence[str], reasons: dict[str, str]) -> dict[str, Any]:
    """Return the keys `decimal`, `thousands` and `missing` with which the fewest columns have to be left out."""
    reader = _reader(keys, "label")
    file = reader.opened(path)
    columns = [column for name in names if (column := _column_or_none(reader, file, name)) is not None]
    words = [word for column in columns for word in list(column.counts())[:_WORDS]]
    marks = sorted({word for column in columns for word in column.counts()} & MISSING_MARKS)
    spellings: list[dict[str, Any]] = []
    has_commas = keys["source"] == "csv" and "separator" not in keys  # between cells: rarely before decimals, too
    for cell_format in sorted(SPELLINGS, key=lambda candidate: has_commas and candidate.decimal == ","):
        reads_more = any(
            cell_format.number(word) is not None and reader.cell_format.number(word) is None for word in words
        )
        if reads_more or cell_format == CellFormat():
            spelling = {key: getattr(cell_format, key) for key in ("decimal", "thousands")}
            plain = {key: value for key, value in spelling.items() if value != getattr(reader, key)}
            spellings += [plain, *([plain | {"missing": marks}] if marks else [])]
    unread = {}
    for number, spelling in enumerate(spellings):
        other_reader = _reader({**keys, **spelling}, "label")
        unread[number] = len(_teaching_nothing(other_reader, other_reader.opened(path), names))
    best = spellings[min(unread, key=lambda number: (unread[number], number))]
    meanings = {
        "decimal": "numbers are written as 1,5",
        "thousands": f"numbers are written as 1{best.get('thousands')}000",
        "missing": "these cells stand for a missing value",
    }
    reasons.update({key: meanings[key] for key in best})
    return best


def _teaching_nothing(reader: FileTable, file: TableFile, names: Sequence[str]) -> dict[str, str]:
    """Return the columns that cannot be learned from, with the reason: dates, ids, free text, mostly empty ones."""
    reasons: dict[str, str] = {}
    for name in names:
        try:
            column = reader.column(file, name)
            if column.words is None:
                column.as_numbers(file.path)
            else:
                refuse_misread(column, file.path, reader.cell_format)
        except DataError as error:
            reasons[name] = _short(str(error), file.path, name)
            continue
        missing = int(column.is_missing.sum())
        values = column.present_values
        different = len(np.unique(values))
        if 2 * missing > file.rows:
            reasons[name] = f"{missing:,} of {file.rows:,} cells are empty"
        elif different < 2:
            reasons[name] = f"all its {'values' if column.words else 'numbers'} are the same"  # 01 and 1 are one number
        elif different == len(values) and column.is_whole() and (_ID.fullmatch(name) or _counts_rows(values)):
            reasons[name] = "a number for each row"
    return reasons


def _counts_rows(values: np.ndarray) -> bool:
    """Return whether values are consecutive numbers, as a row index is."""
    return len(values) > 2 and bool((np.diff(values.astype(np.float64)) == 1).all())


def _short(message: str, path: Path, name: str) -> str:
    """Return the reason in a message of the source, without the file, the column and the advice."""
    text = message.removeprefix(f"{path}: ").removeprefix(f"column '{name}' ")
    return text.partition(";")[0].partition(": ")[0].partition(", the first")[0][:120]  # no cells of the data


# -- label and owner ---------------------------------------------------------------------------------------------------
def _label(
    path: Path,
    columns: Mapping[str, Column],
    names: Sequence[str],
    label: str | None,
    ask: Ask | None,
    reasons: dict[str, str],
) -> str:
    if label is not None:
        return _known(label, f"--label {label}: {path} has no such column", names)
    candidates = [name for name, column in columns.items() if _is_label(column)]
    if not candidates:
        raise DataError(
            f"{path}: no column looks like a class (2 to {_MAX_CLASSES} words or whole numbers); name it with --label, "
            "or bin the values that are to be predicted"
        )
    named = [name for name in candidates if _LABELS.fullmatch(name)]
    guess = next(iter(named), names[-1] if names[-1] in candidates else None)
    if ask is not None:
        answer = ask("Which column is the class?", candidates, guess or candidates[0])
        return _known(answer, f"{answer}: {path} has no such column", names)
    if guess is None:
        raise DataError(f"{path}: name the column of the class with --label: {', '.join(candidates)[:300]}")
    reasons["label"] = "the column of the class, by its name" if named else "the last column; name another with --label"
    return guess


def _known(name: str, why: str, names: Sequence[str]) -> str:
    if name not in names:
        raise ConfigError(f"{why}: {suggest_name(name, names)[:300]}")
    return name


def _is_label(column: Column) -> bool:
    if column.words is None and not column.is_whole() and column.values.dtype.kind != "b":
        return False
    values = column.present_values
    different = len(np.unique(values))
    return 2 <= different <= min(_MAX_CLASSES, max(2, len(values) // 5))


def _owner(
    path: Path,
    columns: Mapping[str, Column],
    names: Sequence[str],
    label: str,
    owner: str | None,
    ask: Ask | None,
    reasons: dict[str, str],
) -> str | None:
    if owner == "none":
        return None
    if owner is not None:
        why = f"--owner {owner}: {path} has no such column apart from the label"
        if owner == label:
            raise ConfigError(f"{why}: {suggest_name(owner, names)[:300]}")
        return _known(owner, why, names)
    candidates = []
    for name, column in columns.items():
        rows = np.unique(column.present_values, return_counts=True)[1]
        owns = len(rows) >= 2 and np.median(rows) >= _MIN_ROWS_OF_OWNER
        if name != label and (column.words is not None or column.is_whole()) and owns:
            candidates.append(name)
    named = [name for name in candidates if _OWNERS.fullmatch(name)]
    if ask is not None and candidates:
        answer = ask("Which column is the owner of a row?", ["none", *candidates], named[0] if named else "none")
        if answer != "none" and (answer not in names or answer == label):
            raise ConfigError(f"{answer}: {path} has no such column: {suggest_name(answer, names)[:300]}")
        return None if answer == "none" else answer
    if not named:
        return None
    reasons["owner"] = "the owner of a row, by the column's name; it is no feature (--owner none changes that)"
    return named[0]
