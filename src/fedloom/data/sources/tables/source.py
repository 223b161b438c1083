"""The base of the sources of tables: rows of numbers and words with a label, and maybe an owner."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator

from fedloom.core.errors import ConfigError, DataError, suggest_name
from fedloom.data.imputation import DropColumns, Impute, ImputeSection, Incomplete
from fedloom.data.sources.cached import ParsedSamples, ParsedSplits, checked_splits
from fedloom.data.sources.python import held_out, owner_ids
from fedloom.data.sources.source import MaxBadSamples, Source, Splits, number_groups
from fedloom.data.sources.tables import columns as cells
from fedloom.data.sources.tables import encoding, words
from fedloom.data.sources.tables.audit import run_notes
from fedloom.data.sources.tables.audited_table import group_column, read_table
from fedloom.data.sources.tables.columns import CellFormat, Column
from fedloom.data.sources.tables.table_files import NO_HEADER, TableFile, looks_like_a_row

_CELLS = 2_000_000  # that a run audits, in about a second
_SUSPECT = "\0suspect"  # no column of a file has this name


class TableSource(Source):
    """Base of tables, with one row per sample. Words always become categories. Subclasses define `tables`."""

    model: ClassVar[str] = "mlp"
    keys_added_later: ClassVar[frozenset[str]] = frozenset(
        {"drop", "drop_columns", "impute", "incomplete", "label_separator", "max_bad_samples", "missing", "no_label"}
    )
    typed: ClassVar[bool] = False  # whether the files state the kinds of their columns

    label: str | tuple[str, ...] = Field(examples=["ill", ["effusion", "nodule"]])
    label_separator: str | None = Field(None, min_length=1, examples=["|"])
    no_label: str | None = Field(None, examples=["No Finding"])
    owner: str | None = Field(None, examples=["hospital"])
    features: tuple[str, ...] | None = Field(None, examples=[["age", "pressure"]])
    categorical: tuple[str, ...] = Field((), examples=[["ward"]])
    test_share: float = Field(0.2, gt=0, lt=1)
    drop: tuple[str, ...] = Field((), description="Columns that are left out.")
    missing: tuple[str, ...] | None = None
    incomplete: Incomplete = "refuse"
    drop_columns: DropColumns = Field({})
    impute: ImputeSection = None
    max_bad_samples: MaxBadSamples = 0

    @model_validator(mode="after")
    def _labels_agree(self) -> "TableSource":
        ways = (not isinstance(self.label, str)) + (self.label_separator is not None)
        is_odd = not self.label or len({*self.label_columns}) < len(self.label_columns)
        if ways != (self.labels == "multi") or is_odd or (self.no_label and not self.label_separator):
            need = "labels: multi reads a list of different columns, or one column with label_separator and no_label"
            raise ConfigError(f"scenario.label = {self.label!r}: {need}; labels: single reads one column without them")
        return self

    @field_validator("missing", "drop", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        """One value is a list of one, and numbers are taken as they are written."""
        values = value if isinstance(value, list | tuple) else [value]
        is_plain = value is not None and all(type(entry) in (str, int, float) for entry in values)
        return tuple(map(str, values)) if is_plain else value

    @property
    def cell_format(self) -> CellFormat:
        """Return how cells are written."""
        return CellFormat(missing=self.missing, typed=self.typed)

    def tables(self) -> list[TableFile]:
        """Return the table of the training rows and, if there is one, that of the test rows."""
        raise TypeError(f"{type(self).__name__} defines no tables()")

    def load(self) -> Splits:
        files = self.tables()
        paths, origin = [file.path for file in files], str(files[0].path)
        names = self._features(files[0])
        audited = read_table(self, files[0], self.one_label, self.owner, self.unused(files[0]), _CELLS)
        suspect = "" if self.group is not None else group_column(audited) or ""
        suspect = suspect if all(suspect in file.columns for file in files) else ""
        notes = files[0].notes(files[0].columns.keys() - {*names, *self.apart})
        for test in files[1:]:
            if others := [name for name in test.columns if name not in files[0].columns and name not in test.index]:
                what = f"columns that the training file lacks were left out ({len(others)})"
                notes.append(f"{test.path}: {what}: {', '.join(others)[:200]}")
        tables: list[dict[str, Column]] = []
        as_read = self._columns(files, names)
        lacking, most = {name: int(as_read[0][name].is_missing.sum()) for name in names}, files[0].rows
        sparse = {name: n for name, n in lacking.items() if n > self.drop_columns.get("above", 1.0) * most}
        if sparse:
            names = [name for name in names if name not in sparse]
            as_read = [{name: part[name] for name in part if name not in sparse} for part in as_read]
            listed = ", ".join(f"'{name}' ({n:,})" for name, n in sparse.items())
            notes.append(f"{origin}: columns that lack too many of {most:,} cells (drop_columns) left out: {listed}")
        if not names:
            raise DataError(f"{origin}: drop_columns = {self.drop_columns} leaves no column to learn from")
        bad, about_rows = words.unreadable_rows(files, as_read, self.max_bad_samples)
        notes += about_rows
        notes += words.unused_marks(files, as_read, self.cell_format)
        for file, columns in zip(files, as_read, strict=True):
            if not self.typed and self.cell_format.thousands is None:
                features = {name: columns[name] for name in names}
                decimal = self.cell_format.decimal
                notes += words.grouped_digits(features, partial(self.texts, file), decimal, str(file.path))
            about_words = self._check(columns, file.path)
            if suspect:
                texts = self.texts(file, [suspect])[suspect]
                columns = columns | {_SUSPECT: replace(texts, words=(*(texts.words or ()), ""), missing=None)}
            complete, left_out = self._complete(columns, file)
            tables.append(complete)
            notes += left_out + (about_words if file is files[0] else [])
        group_key = self.owner if self.group == "owner" else self.group_column
        flow = encoding.table_flow({"read": as_read, "complete": tables}, self.label_columns, self.owner, group_key)
        ids, classes = self.label_ids(tables, paths)
        owner_of_row: list[np.ndarray | None] = [None for _ in tables]
        owners: list[str] = []
        if self.owner is not None:
            held = [table.pop(self.owner).labels() for table in tables]
            owner_of_row, owners = owner_ids(held, [len(of) for of in held], origin)
        group: list[np.ndarray | None] = [None for _ in tables]
        if self.group_column not in (None, self.owner):
            held = [table.pop(str(self.group_column)).labels() for table in tables]
        if self.group not in (None, "none"):
            group = [*number_groups(held, [*map(len, held)], origin)]
        suspected = [table.pop(_SUSPECT).labels() for table in tables] if suspect else []
        # Where a column is suspected, the shares of its rows in both parts are measured and noted later.
        notes += run_notes(audited, self.group is not None or suspect != "")
        # Until the vocabulary is known, x holds row numbers: only training rows may say which words there are.
        arrays = zip(ids, owner_of_row, group, strict=True)
        parts = [ParsedSamples(np.arange(len(y)), y, owner, of) for y, owner, of in arrays]
        if len(parts) == 1:
            parts, tables = held_out(parts[0], self.test_share, len(classes), bool(owners), origin), tables * 2
        if suspect:
            ids_of_rows = [of[part.x] for of, part in zip(suspected * 2, parts, strict=False)]
            codes = np.unique(np.concatenate(ids_of_rows), return_inverse=True)[1]
            suspects = [*map(torch.from_numpy, np.split(codes, [len(parts[0].x)]))]
        imputes = (self.impute or Impute()) if self.incomplete == "impute" else None
        vocabulary = encoding.vocabulary(tables[0], parts[0].x, origin, imputes)
        for number, (table, path) in enumerate(zip(tables, [paths[0], paths[-1]], strict=True)):
            rows, is_other = parts[number].x, path != paths[0]
            x, unknown, _ = encoding.encoded(table, rows, vocabulary, path, origin, is_other)
            parts[number] = replace(parts[number], x=x)
            notes += unknown
        part_origins = str(paths[0]), str(paths[-1])
        parsed = ParsedSplits(
            origin, parts[0], parts[1], classes, tuple(owners), notes=tuple(notes), labels=self.labels
        )
        parsed = replace(
            parsed, part_origins=part_origins, labels=self.labels, incomplete="impute" if imputes else "refuse"
        )
        splits = checked_splits(parsed)
        pairs = [(name, word) for name in names for word in vocabulary[name] or [""]]
        titles = tuple(f"{name}={word}" if word else name for name, word in pairs)
        return replace(
            splits,
            rules=() if imputes is None else imputes.rules(vocabulary, origin),
            train=replace(splits.train, features=titles, suspect=suspects[0] if suspect else None),
            test=replace(splits.test, features=titles, suspect=suspects[1] if suspect else None),
            suspect=suspect,
            unreadable=bad,
            flow=flow,
            domains_are_owners=bool(owners),
            numeric_features=tuple(position for position, (_, word) in enumerate(pairs) if not word),
        )

    @property
    def apart(self) -> list[str]:
        """The columns that are no features: label, owner and group."""
        return list(dict.fromkeys(filter(None, (*self.label_columns, self.owner, self.group_column))))

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of the labels."""
        return (self.label,) if isinstance(self.label, str) else self.label

    @property
    def one_label(self) -> str | None:
        """The column of the class; None for several labels."""
        return self.label if isinstance(self.label, str) and self.labels == "single" else None

    @property
    def _unrecorded(self) -> tuple[str, ...]:
        """The columns whose empty cells say that a label was not recorded."""
        return self.label_columns if self.labels == "multi" and self.label_separator is None else ()

    def label_ids(
        self, tables: Sequence[dict[str, Column]], paths: Sequence[Path]
    ) -> tuple[list[np.ndarray], tuple[str, ...]]:
        """Take the labels out of `tables`, those of the files `paths`; return class ids [n] or labels [n, L] of each,
        and the names of the classes."""
        held = [[table.pop(name) for name in self.label_columns] for table in tables]
        if self._unrecorded:
            return [encoding.label_cells(*part) for part in zip(held, paths, strict=True)], self.label_columns
        columns = [part[0] for part in held]
        if self.label_separator is None:
            return encoding.label_ids(columns, paths)
        return encoding.separated_labels(columns, paths, self.label_separator, self.no_label)

    def unused(self, file: TableFile) -> set[str]:
        """Return the columns that are no features, apart from label and owner."""
        left = set() if self.features is None else {*file.columns} - {*self.features}
        return ({*self.drop, *left} | {*self.apart}) - {self.one_label, self.owner}

    def column(self, file: TableFile, name: str) -> Column:
        """Return a column of a file. Raises `DataError` if it is not there, or neither numbers nor words."""
        self.require_column(file, name)
        return cells.read_column(file.columns[name], name, file.path, self.cell_format)

    def feature(self, file: TableFile, name: str, like: Column | None = None) -> Column:
        """Return a column of a file as `column` does, with cells such as 51 kg as numbers unless it holds names. like:
        the same column of the training file. Raises `DataError` for another unit than there."""
        column = self.column(file, name)
        if name in (*self.label_columns, self.owner, *self.categorical):
            return column
        column = words.measured(column, file.path, self.cell_format, like is not None)
        if self.max_bad_samples and column.words is not None:
            column = words.with_unreadable(column, self.cell_format, self.max_bad_samples)
        if like is not None and column.unit and like.unit and column.unit.casefold() != like.unit.casefold():
            raise DataError(f"{file.path}: column '{name}' is in {column.unit}, that of training rows in {like.unit}")
        return column

    def require_column(self, file: TableFile, name: str) -> None:
        """Raise `DataError` if a file has no such column."""
        if name not in file.columns:
            raise DataError(f"{file.path}: has no column '{name}': {suggest_name(name, file.columns)[:300]}")

    def _features(self, file: TableFile) -> list[str]:
        """Return the columns to learn from; raises `DataError` for keys that name no column of the file."""
        columns = file.columns
        apart = self.apart
        for role, name in (("owner", self.owner), ("group", self.group_column)):
            if name in self.label_columns:
                raise DataError(f"{file.path}: label and {role} are both '{name}'; they must be two columns")
        if self.group is not None and not isinstance(self.group, str):
            raise DataError(f"{file.path}: group.pattern is for file names; name the column of the groups of a table")
        if self.group == "owner" and self.owner is None:
            raise DataError(f"{file.path}: group = 'owner', and no column is named as owner; name it, or a group")
        without = {*apart, *self.drop, *(name for name in file.index if name not in self.categorical)}
        chosen = [name for name in columns if name not in without] if self.features is None else list(self.features)
        keys = {
            "label": self.label_columns,
            "owner": [] if self.owner is None else [self.owner],
            "group": [] if self.group_column is None else [self.group_column],
            "features": chosen,
            "categorical": self.categorical,
            "drop": self.drop,
        }
        for key, names in keys.items():
            unknown = next((name for name in names if name not in columns), None)
            if unknown is not None:
                hint = NO_HEADER if looks_like_a_row(columns) else suggest_name(unknown, columns)[:300]
                raise DataError(f"{file.path}: {key} = '{unknown}' is no column: {hint}")
        counts = Counter(chosen)
        wrong = next((name for name in chosen if name in {*apart, *self.drop} or counts[name] > 1), None)
        if wrong is not None:
            raise DataError(f"{file.path}: features name '{wrong}' twice, or as the label or owner/group; name it once")
        if not chosen:
            raise DataError(f"{file.path}: no column to learn from except {' and '.join(apart)}")
        return chosen

    def texts(self, file: TableFile, names: Sequence[str]) -> dict[str, Column]:
        """Return columns of a file as words, even if they look like numbers."""
        return {
            name: cells.read_texts(values, name, file.path, self.cell_format)
            if cells.is_text(values.type)
            else encoding.as_texts(cells.read_column(values, name, file.path, self.cell_format))
            for name, values in file.texts(names).items()
        }

    def names(self, files: Sequence[TableFile], tables: Sequence[Mapping[str, Column]]) -> list[dict[str, Column]]:
        """Return columns of names in each file: words in place of numbers that merge two names, as 01 and 1. tables:
        the columns of each of the files as they were read."""
        numeric = [name for name in tables[0] if all(table[name].is_numeric() for table in tables)]
        texts = [self.texts(file, numeric) for file in files]
        merged = {
            name
            for table, part in zip(tables, texts, strict=True)
            for name in numeric
            if encoding.merge_names(table[name], part[name], self.cell_format)
        }
        return [{**table, **{name: part[name] for name in merged}} for table, part in zip(tables, texts, strict=True)]

    def _columns(self, files: Sequence[TableFile], features: Sequence[str]) -> list[dict[str, Column]]:
        """Return the columns that are used, in each file: features, label, owner and group."""
        apart = [*self.label_columns, *([] if self.owner is None else [self.owner])]
        of_groups = [] if self.group_column in (None, self.owner) else [str(self.group_column)]
        for file in files[1:]:
            for name in of_groups:
                self.require_column(file, name)
        as_written = [self.texts(file, of_groups) for file in files]
        first = {name: self.feature(files[0], name) for name in [*features, *apart]}
        measured = [name for name, column in first.items() if column.words is None]
        tables = [first, *({name: self.feature(file, name, first[name]) for name in measured} for file in files[1:])]
        named = [name for name in measured if name in {*apart, *self.categorical}]
        as_names = self.names(files, [{name: table[name] for name in named} for table in tables])
        first, *others = (table | names for table, names in zip(tables, as_names, strict=True))
        for name in first.keys() & {*self.categorical}:
            if first[name].words is None and name not in apart:
                first[name].as_numbers(files[0].path)  # refuses infinite ones
            first[name] = first[name].as_words()
        later = (table | self._like_first(file, first) for file, table in zip(files[1:], others, strict=True))
        return [table | ids for table, ids in zip([first, *later], as_written, strict=True)]

    def _like_first(self, file: TableFile, first: Mapping[str, Column]) -> dict[str, Column]:
        """Return the columns of another file that are words in the first one, even if all look like numbers here."""
        worded = {name: column.words for name, column in first.items() if column.words is not None}
        for name in worded:
            self.require_column(file, name)
        columns = {}
        for name, texts in self.texts(file, list(worded)).items():
            columns[name] = encoding.as_known(texts, worded[name], self.cell_format)
            if not {*worded[name]} & {*(columns[name].words or ())} and name not in (*self.label_columns, self.owner):
                read = self.column(file, name)
                columns[name] = read if read.is_numeric() and name not in self.categorical else columns[name]
        return columns

    def _check(self, columns: Mapping[str, Column], path: Path) -> list[str]:
        """Refuse columns that lack values or are misread; return notes on their words."""
        notes: list[str] = []
        for name, column in columns.items():
            if name in self._unrecorded:
                continue
            if self.incomplete == "refuse":
                cells.refuse_missing(column, path, name in self.apart)
            if name in self.apart:
                if self.missing is None:
                    roles = {self.group_column: "group", self.owner: "owner"}
                    words.refuse_missing_marks(column, path, roles.get(name, "label"))
                continue
            if column.words is None:
                column.as_numbers(path)  # refuses infinite ones
                notes += [f"{path}: column '{name}' holds numbers: {column.note}"] if column.note else []
            elif name not in self.categorical:
                notes += words.refuse_misread(column, path, self.cell_format)
        return notes

    def _complete(self, columns: dict[str, Column], file: TableFile) -> tuple[dict[str, Column], list[str]]:
        """Return the columns without the rows that lack a value that is needed, and a note on how many these were."""
        imputes = self.incomplete == "impute"
        names = [name for name in columns if name not in self._unrecorded and (not imputes or name in self.apart)]
        needed = [columns[name] for name in names]
        incomplete, unreadable = (
            cells.incomplete_rows(needed, file.rows),
            cells.unreadable(columns.values(), file.rows),
        )
        incomplete[unreadable] = False
        count = int(incomplete.sum())
        incomplete[unreadable] = True
        if not incomplete.any():
            return columns, []
        if incomplete.all():
            raise DataError(f"{file.path}: every row lacks a value; leave out the columns that are empty (drop)")
        rows = np.flatnonzero(~incomplete)
        lack = f"lack {'a label, owner or group, which are never imputed,' if imputes else 'a value'}"
        note = f"{file.path}: {count:,} of {file.rows:,} rows {lack} and were left out (incomplete: {self.incomplete})"
        return {name: column.rows(rows) for name, column in columns.items()}, [note] if count else []
