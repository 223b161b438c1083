"""Columns of a table as features and class ids."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedloom.core.errors import DataError
from fedloom.data import labels as label_rules
from fedloom.data.dataset import require_memory
from fedloom.data.imputation import Impute
from fedloom.data.leak import stage
from fedloom.data.sources.tables.columns import CellFormat, Column, ReadingError, number_name
from fedloom.data.sources.tables.words import CATEGORIES

Vocabulary = Mapping[str, Sequence[str]]
"""The words of each column in the order of their features; none for measurements."""

_LISTED = 5  # columns in a note
_MOST_NUMBERS = 1000
_EXACT = 2**53  # a float holds all whole numbers below


def vocabulary(
    columns: Mapping[str, Column], rows: np.ndarray, origin: str, imputes: Impute | None = None
) -> dict[str, list[str]]:
    """Return the different words that the training rows (numbers [n]) of each column hold, in order, with a word to be
    imputed; [] for numbers. Raises `DataError`, with the file as origin, for a column with too many words."""
    words: dict[str, list[str]] = {}
    for name, column in columns.items():
        present = column.rows(rows)
        constant = None if imputes is None or present.missing is None else imputes.chosen(name, True)[1]
        held = {*(present.words or ()), *([] if constant is None else [str(constant)])}
        words[name] = [] if column.words is None else label_rules.sorted_words(sorted(held))
        if len(words[name]) > CATEGORIES:
            raise DataError(
                f"{origin}: column '{name}' holds {len(words[name])} different words, more than {CATEGORIES}; an id or "
                "free text teaches nothing: leave it out (features)"
            )
    return words


def encoded(
    columns: Mapping[str, Column], rows: np.ndarray, words: Vocabulary, path: Path, origin: str, other_file: bool
) -> tuple[np.ndarray, list[str], int]:
    """Return features [n, d], float32, NaN where a cell is missing, a note on cells with words outside the vocabulary,
    and how many these are. rows: their numbers [n], int64. words: the vocabulary. path: the file, for messages. origin:
    the training file. other_file: whether the rows are of another one. Raises `DataError` for columns of another kind
    than `words` says, and for one that another file spells otherwise."""
    width = sum(max(1, len(column_words)) for column_words in words.values())
    require_memory(4 * len(rows) * width, origin)
    x, offset = np.zeros((len(rows), width), np.float32), 0
    unknown: dict[str, int] = {}
    for name, column_words in words.items():
        column = columns[name].rows(rows)
        if bool(column_words) != (column.words is not None) and not column.is_missing.all():
            raise ReadingError(
                f"{origin}: column '{name}' holds words in one of the two files and numbers in the other",
                "mend the file, or name it as categorical",
            )
        if column.words is None:
            x[:, offset] = column.as_numbers(path)
        else:
            if other_file:
                label_rules.refuse_other_spelling(column.counts(), column_words, f"{path}: column '{name}'")
            unknown[name] = label_rules.unknown_cells(column.counts(), column_words)
            rank = {word: position for position, word in enumerate(column_words)}
            positions = np.array([*(rank.get(word, -1) for word in column.words), -1], np.int64)[column.values]
            x[np.flatnonzero(positions >= 0), offset + positions[positions >= 0]] = 1
        end = offset + max(1, len(column_words))
        if column.missing is not None:
            x[column.missing, offset:end] = np.nan
        offset = end
    counts = [f"'{name}' ({count:,})" for name, count in unknown.items() if count]
    rest = f" and {len(counts) - _LISTED} more columns" if len(counts) > _LISTED else ""
    detail = f"rows of {len(rows):,} with such words: {', '.join(counts[:_LISTED])}{rest}"
    note = f"{path}: words that no training row holds are 0 in all features of their column; {detail}"
    return x, [note] if counts else [], sum(unknown.values())


def label_ids(columns: Sequence[Column], paths: Sequence[Path]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return class ids [n] of each file (training first), and the names of the classes, which match by name: 1, 1.0 and
    the text "1" are one class. columns: without missing values. Raises `DataError` for measurements, with the paths."""
    for column, path in zip(columns, paths, strict=True):
        if column.words is None and column.values.dtype.kind == "f" and not column.is_whole():
            _refuse_measurement(column, path, "labels have dtype float64, and ")
    labels = [column.labels() for column in columns]
    if len({part.dtype.kind in "iu" for part in labels}) > 1:
        labels = [part.astype(np.str_) for part in labels]
    if labels[0].dtype.kind == "U":
        origins = [f"{path} ({part})" for path, part in zip(paths, label_rules.PARTS, strict=False)]
        ids, classes = label_rules.named_ids(labels, origins)
    else:
        ids, classes = label_rules.class_ids(labels, str(paths[0]))
    for column, path in zip(columns, paths, strict=True):
        if column.words is None and len(np.unique(column.values)) > _MOST_NUMBERS:
            _refuse_measurement(column, path, "")
    return ids, classes


_LABEL_CELLS = {"1": 1, "yes": 1, "true": 1, "0": 0, "no": 0, "false": 0, "-1": -1}


def label_cells(columns: Sequence[Column], path: Path) -> np.ndarray:
    """Return labels [n, L] of columns: 1, 0, or -1 (empty), int64. Raises `DataError`, with the path, for other
    words."""
    labels = []
    for column in map(as_texts, columns):
        codes = {word: _LABEL_CELLS.get(label_rules.folded(word)) for word in column.words or ()}
        codes |= dict.fromkeys(codes.keys() & label_rules.MISSING_MARKS, -1)
        if (odd := next((word for word, code in codes.items() if code is None), None)) is not None:
            need = "1 and 0, yes and no, or true and false, and an empty cell where it was not recorded"
            count = column.counts()[odd]
            raise DataError(f"{path}: label '{column.name}' is '{odd[:40]}' in {count:,} rows; need {need}")
        cells = np.array([*codes.values(), -1], np.int64)
        labels.append(cells[np.where(column.is_missing, -1, column.values)])
    return np.stack(labels, 1)


def separated_labels(
    columns: Sequence[Column],
    paths: Sequence[Path],
    separator: str,
    no_label: str | None,
    classes: Sequence[str] | None = None,
) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Return labels [n, L] of each file (training first) whose cells name those that a sample has, parted by the
    separator, and the names of the L labels: `classes`, or those of the training file. no_label: the word for none.
    columns: without missing values. Raises `DataError`, with the paths, for words that are none of the names."""
    texts = [as_texts(column).labels().tolist() for column in columns]
    cells = [[{word.strip() for word in cell.split(separator)} - {""} for cell in part] for part in texts]
    counts = Counter(len(cell) for cell in cells[0] if no_label in cell)
    if counts.total() != counts[1] or (no_label is not None and not counts and classes is None):
        what = f"stands with labels in {counts.total() - counts[1]:,} cells" if counts else "is in no cell"
        raise DataError(f"{paths[0]}: no_label = '{no_label}' {what} of '{columns[0].name}'; mend it, or leave it out")
    if classes is None and not any(separator in cell for cell in texts[0]):
        raise DataError(f"{paths[0]}: label_separator = '{separator}' is in no cell of '{columns[0].name}'")
    pairs = [[(row, word) for row, cell in enumerate(part) for word in sorted(cell - {no_label})] for part in cells]
    origins = [f"{path} ({part})" for path, part in zip(paths, label_rules.PARTS, strict=False)]
    origins = origins if classes is None else [*map(str, paths)]
    ids, names = label_rules.named_ids([[word for _, word in part] for part in pairs], origins, classes)
    labels = [np.zeros((len(part), len(names)), np.int64) for part in cells]
    for y, part, of in zip(labels, pairs, ids, strict=True):
        y[[row for row, _ in part], of] = 1
    return labels, names


_NONE = re.compile(r"(?i)(no|none|normal|healthy|negative|nothing)([ _-](findings?|labels?|diagnos[ie]s|disease))?")


def separator_keys(column: Column) -> dict[str, str]:
    """Return the keys label_separator and no_label for a column of words such as a|b, which name several labels; none
    for others. Parted by "|" or ";", such words become no more different ones."""
    counts = column.counts()
    for separator in "|;":
        cells = [{part.strip() for part in word.split(separator)} - {""} for word in counts]
        together = set().union(*(labels for labels in cells if len(labels) > 1))
        if together and len(together.union(*cells)) <= len(counts):
            none = next((word for word in counts if word not in together and _NONE.fullmatch(word)), None)
            return {"label_separator": separator} | ({} if none is None else {"no_label": none})
    return {}


def _refuse_measurement(column: Column, path: Path, also: str) -> None:
    values = np.unique(column.values)
    raise DataError(
        f"{path}: label '{column.name}' has {len(values):,} different values, such as {values[0]:g}: {also}it looks "
        "like a measurement; name a column of classes, or bin the values"
    )


def merge_names(numbers: Column, texts: Column, cell_format: CellFormat) -> bool:
    """Tell whether names that a file writes in several ways, as 01 and 1, become one number. numbers, texts: the same
    cells, read as numbers and as they are written in the cell_format."""
    rows = np.flatnonzero(~(numbers.is_missing | texts.is_missing))
    codes, first = np.unique(texts.values[rows], return_index=True)
    values: dict[str, int | float] = {}
    for code, value in zip(codes.tolist(), numbers.values[rows[first]].tolist(), strict=True):
        spelling = cell_format.spelling((texts.words or ())[code])
        if isinstance(value, float) and abs(value) >= _EXACT and spelling.removeprefix("-").isdecimal():
            return True  # its last digits are lost
        values[spelling] = value
    return len(set(values.values())) < len(values)


def as_texts(column: Column) -> Column:
    """Return numbers and booleans as words, as Python writes them; words unchanged."""
    if column.words is not None or column.values.dtype.kind != "b":
        return column.as_words()
    return replace(column, values=column.values.astype(np.int64), words=("False", "True"))


def as_known(texts: Column, vocabulary: Collection[str], cell_format: CellFormat) -> Column:
    """Return the cells (texts, as written in the cell_format) with known words spelled as in the vocabulary. If all
    known words are numbers, words are matched by value (01 is 1), else by spelling: 01 and 1 may be two names."""
    are_numbers = not cell_format.typed and all(_number_name(word, CellFormat()) == word for word in vocabulary)
    words = texts.words or ()
    names = [_known_name(word, vocabulary, are_numbers, cell_format) for word in words]
    missing_marks = label_rules.MISSING_MARKS if cell_format.missing is None else cell_format.missing
    marks = {_number_name(mark, cell_format) or mark for mark in missing_marks} if are_numbers else set[str]()
    absent = [name not in vocabulary and (_number_name(name, cell_format) or name) in marks for name in names]
    present = sorted({name for name, is_absent in zip(names, absent, strict=True) if not is_absent})
    rank = {name: code for code, name in enumerate(present)}
    # The last code is for cells that are missing already.
    codes = np.array([-1 if lacks else rank[name] for name, lacks in zip(names, absent, strict=True)] + [-1], np.int64)
    values = codes[texts.values if texts.missing is None else np.where(texts.missing, len(words), texts.values)]
    return replace(texts, values=values, words=tuple(present), missing=values < 0 if (values < 0).any() else None)


def _known_name(word: str, vocabulary: Collection[str], are_numbers: bool, cell_format: CellFormat) -> str:
    """Return the known word that a text stands for; the text itself if there is none."""
    if word in vocabulary or cell_format.typed:
        return word
    names = [cell_format.spelling(word)]
    if are_numbers:
        names += [_number_name(word, cell_format) or word, {"false": "0", "true": "1"}.get(word.lower(), word)]
    return next((name for name in names if name in vocabulary), word)


def _number_name(word: str, cell_format: CellFormat) -> str | None:
    value = cell_format.number(word)
    return None if value is None else number_name(value)


def table_flow(stages: Any, labels: Sequence[str], owner: str | None, group: str | None) -> dict[str, Any]:
    """Return the rows, sites and groups (`stage`) of the tables of each of the `stages`, by the columns `owner` and
    `group`; of stage "read" also of the rows whose `labels` are not missing."""
    flow = dict[str, Any]()
    for name, tables in stages.items():
        numbered: dict[str | None, tuple[np.ndarray, list[str]]] = {None: (np.zeros(0, np.int64), [])}
        has_label = ~np.concatenate([np.all([of[k].is_missing for k in labels], 0) for of in tables])
        for key in filter(None, (owner, group)):
            columns = [part[key].as_words() for part in tables]
            words = np.unique([word for of in columns for word in of.words or ()])
            codes = np.concatenate([np.searchsorted(words, of.words or ("",))[of.values] for of in columns])
            numbered[key] = np.where(np.concatenate([of.is_missing for of in columns]), -1, codes), words.tolist()
        for stage_name, rows in ((name, np.ones_like(has_label)), ("labelled", has_label))[: 1 + (name == "read")]:
            sites = numbered[owner][0][rows] if owner else np.full(rows.sum(), -1)
            flow[stage_name] = stage(sites, numbered[owner][1], numbered[group][0][rows] if group else None)
    return flow
