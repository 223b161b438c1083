"""The sources `csv` and `parquet`."""

from __future__ import annotations

import codecs
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from fedloom.data.sources.source import source
from fedloom.data.sources.tables.source import TableSource
from fedloom.data.sources.tables.table_files import TableFile, read_csv, read_parquet


@source("csv")
class Csv(TableSource):
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
class Parquet(TableSource):
    """Rows of a Parquet file. The keys are those of the source `csv` but for `separator` and `encoding`. Columns that
    pandas wrote as the row index are left out.

    scenario: {source: parquet, path: patients.parquet, label: ill, partition: dirichlet, alpha: 0.3, clients: 8}
    """

    typed: ClassVar[bool] = True

    def read(self, path: Path) -> TableFile:
        return read_parquet(path)
