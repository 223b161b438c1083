"""The sources `csv` and `parquet`: tables in files."""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from fedloom.core.errors import DataError, printable
from fedloom.data.sources.regular_files import require_file
from fedloom.data.sources.source import source
from fedloom.data.sources.tables.columns import CellFormat
from fedloom.data.sources.tables.source import TableSource
from fedloom.data.sources.tables.table_files import TableFile, read_csv, read_parquet

_READING_KEYS = ("missing", "decimal", "thousands", "separator", "encoding", "incomplete")


class FileTable(TableSource):
    """Base of tables in files: a file of rows, and maybe another one of test rows."""

    keys_added_later: ClassVar[frozenset[str]] = frozenset({"decimal", "thousands"})

    path: Path = Field(
        description="Path of the file with the rows.",
        examples=["patients.csv"],
    )
    test_path: Path | None = Field(
        None,
        description="Path of another file with the test rows; null holds out a share of the rows.",
    )
    decimal: Literal[".", ","] = Field(".", description="What stands before the decimals of a number.")
    thousands: Literal[",", ".", "'", " ", "_"] | None = Field(
        None, description="What stands between groups of three digits."
    )

    @model_validator(mode="after")
    def _apart(self) -> FileTable:
        if self.thousands == self.decimal:
            raise ValueError(f"decimal and thousands are both '{self.decimal}'; they must differ")
        return self

    @property
    def cell_format(self) -> CellFormat:
        return CellFormat(self.decimal, self.thousands, self.missing, self.typed)

    def files(self) -> Sequence[Path]:
        paths = [self.path] if self.test_path is None else [self.path, self.test_path]
        for path in paths:
            require_file(path, f"a table with a column '{self.label}'")
        return paths

    def reading_keys(self) -> dict[str, Any]:
        fields = type(self).model_fields
        return {key: getattr(self, key) for key in _READING_KEYS if key in fields and not self._is_default(key)}

    def tables(self) -> list[TableFile]:
        return [self.opened(path) for path in self.files()]

    def opened(self, path: Path) -> TableFile:
        """The file's columns. Raises `DataError`, one line, for what cannot be read and for a file without rows."""
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
        """The columns of a file. May raise what pyarrow raises."""
        raise TypeError(f"{type(self).__name__} defines no read()")

    def _is_default(self, key: str) -> bool:
        return bool(getattr(self, key) == type(self).model_fields[key].default)


@source("csv")
class Csv(FileTable):
    """Rows of a CSV file with a header: a column holds the class, all others are numbers or words.

    With `partition: natural` each owner becomes a client. A categorical column becomes one feature for each word of the
    training rows, 1 or 0; a word that is not among these is all 0. A column without a name, as pandas writes its row
    index, is left out. A column that is mostly numbers or dates but for some cells, or that has nearly as many words as
    rows, is refused.

    Numbers are standardised when clients are dealt, by the rows that clients train on: mean and deviation see no test
    and no validation row.

        scenario: {source: csv, path: patients.csv, label: ill, owner: hospital, partition: natural, clients: 8}
    """

    keys_added_later: ClassVar[frozenset[str]] = frozenset({"encoding"})

    separator: str = Field(
        ",",
        min_length=1,
        max_length=1,
        description="Character between the cells of a row.",
        examples=[";"],
    )
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
    """Rows of a Parquet file. The keys are those of the source `csv` but for `separator` and `encoding`. Columns that
    pandas wrote as the row index are left out.

    scenario: {source: parquet, path: patients.parquet, label: ill, partition: dirichlet, alpha: 0.3, clients: 8}
    """

    typed: ClassVar[bool] = True

    def read(self, path: Path) -> TableFile:
        return read_parquet(path)
