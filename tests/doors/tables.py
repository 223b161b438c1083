"""Doors: the files of tables, their columns and their row indices."""

import gzip
import os
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from doors.door import Door
from doors.rows import AGES, ILL, ROWS, Write, column, parquet, raw, text_of

_TABLE = {"age": AGES, "ill": ILL}
_TEXT = text_of(_TABLE)
_ACCENTS = _TEXT.replace("yes", "j\u00e9")
_READ = {"train": 32, "test": 8, "features": ("age",), "classes": ("no", "yes")}
_INDEX = "row index left out"


def _indexed(change: Callable[[Any], Any], **keys: Any) -> Write:
    """A Parquet file of a pandas table after `change`."""

    def write(folder: Path) -> dict[str, Any]:
        import pandas as pd

        change(pd.DataFrame(_TABLE | {"patient": [f"p{row // 8}" for row in range(ROWS)]})).to_parquet(
            folder / "a.parquet"
        )
        return {"source": "parquet", "path": folder / "a.parquet", "label": "ill", **keys}

    return write


def _special(make: Callable[[Path], Any], source: str = "csv") -> Write:
    """A path that is no regular file."""

    def write(folder: Path) -> dict[str, Any]:
        make(folder / "set")
        return {"source": source, "path": folder / "set", "label": "ill"}

    return write


def _no_row_groups(path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet as files

    files.ParquetWriter(path, pa.schema([("age", pa.float64()), ("ill", pa.string())])).close()


def _not_utf8(pa: Any) -> Any:
    return pa.Array.from_buffers(pa.string(), ROWS, pa.array([b"\xff"] * ROWS, pa.binary()).buffers())


def _bad_name(folder: Path) -> dict[str, Any]:
    path = folder / os.fsdecode(b"set\xff.csv")
    path.write_text(_TEXT)
    return {"source": "csv", "path": path, "label": "ill"}


DOORS = [
    # row indices
    Door("pandas index", _indexed(lambda t: t.drop(columns="patient").sample(frac=1.0, random_state=0)), _READ,
        notes=((_INDEX, "__index_level_0__"),)),
    Door("pandas named index", _indexed(lambda t: t.set_index("patient")), _READ, notes=((_INDEX, "'patient'"),)),
    Door("pandas index as owner", _indexed(lambda t: t.set_index("patient"), owner="patient"),
        {"features": ("age",), "owners": tuple(f"p{n}" for n in range(5))}),
    Door("pandas range index", _indexed(lambda t: t.drop(columns="patient")), _READ),
    Door("pandas index made a column", _indexed(lambda t: t.drop(columns="patient").reset_index()),
        {"features": ("index", "age")}, notes=(("counts the rows", "'index'"),)),
    Door("nameless first column", raw(text_of({"": range(ROWS), **_TABLE})), _READ, notes=((_INDEX, "no name"),)),
    Door("Unnamed: 0", raw(text_of({"Unnamed: 0": range(ROWS), **_TABLE})), _READ, notes=((_INDEX, "Unnamed: 0"),)),
    Door("index asked for", raw(text_of({"": AGES, **_TABLE}), features=["", "age"]), {"features": ("", "age")}),
    Door("nameless column", raw(text_of({"age": AGES, "": AGES, "ill": ILL})), refused=("column 2 has no name",)),
    Door("separators at line ends", raw(_TEXT.replace("\n", ",\n")), _READ,
        notes=(("without a name and without a value",),)),
    # encodings and packed files
    Door("Latin-1", raw(_ACCENTS.encode("latin-1")), refused=("0xe9, line 2", "UTF-8", "`encoding: latin-1`")),
    Door("Latin-1 header", raw(_TEXT.replace("age", "\u00e2ge").encode("latin-1")), refused=("0xe2, line 1",)),
    Door("Latin-1 said", raw(_ACCENTS.encode("latin-1"), encoding="latin-1"), {"classes": ("j\u00e9", "no")}),
    Door("unknown encoding", raw(_TEXT, encoding="klingon"), refused=("encoding = 'klingon'", "no such encoding")),
    Door("UTF-8 with a mark", raw(b"\xef\xbb\xbf" + _TEXT.encode()), _READ),
    Door("UTF-16 with a mark", raw(_TEXT.encode("utf-16")), _READ),
    Door("UTF-16 without a mark", raw(_TEXT.encode("utf-16-le")), refused=("line 1 holds a NUL byte", "UTF-16")),
    Door("NUL", raw(_TEXT.replace("yes", "y\0es", 1)), refused=("line 2 holds a NUL byte",)),
    Door("gzip", raw(gzip.compress(_TEXT.encode())), refused=("is gzip-compressed; unpack it",)),
    Door("gzip by name", raw(gzip.compress(_TEXT.encode()), "set.csv.gz"), _READ),
    Door("damaged gzip", raw(gzip.compress(_TEXT.encode())[:-20], "set.csv.gz"), refused=("cannot be read as csv",)),
    Door("zip", raw(b"PK\x03\x04 and more"), refused=("a zip archive or an Excel workbook",)),
    Door("Parquet as CSV", raw(b"PAR1 and more"), refused=("is a Parquet file; take the source parquet",)),
    # lines and cells
    Door("CR", raw(_TEXT.replace("\n", "\r")), _READ),
    Door("CRLF and empty lines", raw(_TEXT.replace("\n", "\r\n\r\n")), _READ),
    Door("semicolons", raw(_TEXT.replace(",", ";")), refused=("only column is 'age;ill'", "';'", '`separator: ";"`')),
    Door("tabs", raw(_TEXT.replace(",", "\t")), refused=("separated by a tab", r'`separator: "\t"`')),
    Door("ragged", raw("age,ill\n1,yes\n2,no,3\n"), refused=("Expected 2 columns, got 3 in line 3", "header: 1")),
    Door("one cell more", raw(_TEXT.replace("yes", "yes,").replace("no", "no,")),
        refused=("header: 40", "end of the lines")),
    Door("open quote", raw(_TEXT.replace("no", '"no', 1)), refused=("column 'ill' in row 2", "a quote is not closed")),
    Door("open quote in front", raw(_TEXT.replace("2.5", '"2.5', 1)), refused=("a quote is not closed",)),
    Door("line break in a word", raw(_TEXT.replace("no", '"n\no"', 1)), refused=("line breaks", r"'n\no'")),
    Door("two names alike", raw("age,age,ill\n1,2,yes\n"), refused=("two columns are called 'age'",)),
    Door("no header", raw("".join(f"{row % 5},{row % 2}\n" for row in range(ROWS))),
        refused=("first line looks like a row",)),
    Door("no header, words", raw("".join(f"{row}.5,{'fm'[row % 2]},{'ab'[row // 2 % 2]},{ILL[row]}\n"
        for row in range(ROWS)), label="yes"), refused=("first line looks like a row",
        "'f', 'a', 'yes' occur in their own columns")),
    Door("no header, numbers and a word", raw("".join(f"{row}.5,{row * 3}.25,{row * 7},{ILL[row]}\n"
        for row in range(ROWS)), label="yes"), refused=("first line looks like a row", "'yes' occur")),
    Door("no header, numbers alone", raw("".join(f"{row}.5,{row * 3 + 1}.25,{row % 2}\n" for row in range(ROWS)),
        label="0"), {"features": ("0.5", "1.25")}, notes=(("most columns are called by numbers, such as '0.5'",
        "if the first line is a row"),)),
    Door("numbered columns", raw("0,1,2,ill\n" + "".join(f"{row % 5},{row % 7},{row % 3},{ILL[row]}\n"
        for row in range(ROWS))), {"features": ("0", "1", "2")}),
    Door("a word that is its column's name", raw(text_of(_TABLE | {"b": ["a", "b", "b", "a"] * 10})), {"train": 32}),
    Door("only a header", raw("age,ill\n"), refused=("holds no rows",)),
    Door("nothing", raw(""), refused=("cannot be read as csv",)),
    Door("rows of nothing", raw(_TEXT + ",\n,\n"), refused=("'age' lacks 2 values, the first in row 41",)),
    Door("unknown column to drop", column(AGES, drop="w"), refused=("drop = 'w' is no column",)),
    # what is no file
    Door("pipe", _special(os.mkfifo), refused=("is a pipe or a device",)),
    Door("pipe for Parquet", _special(os.mkfifo, "parquet"), refused=("is a pipe or a device",)),
    Door("device", _special(lambda path: path.symlink_to("/dev/zero")), refused=("is a pipe or a device",)),
    Door("folder", _special(Path.mkdir), refused=("is a folder",)),
    Door("a name that is not UTF-8", _bad_name, _READ),
    # columns of Parquet
    Door("Parquet of no row groups", _special(_no_row_groups, "parquet"), refused=("holds no rows",)),
    Door("lists", parquet(lambda pa: [[1.0]] * ROWS), refused=("'v' holds list<", "drop: ['v']")),
    Door("nested", parquet(lambda pa: [{"a": 1}] * ROWS), refused=("'v' holds struct<",)),
    Door("timestamps", parquet(lambda pa: pa.array([0] * ROWS, pa.timestamp("s"))), refused=("'v' holds timestamp[",)),
    Door("days", parquet(lambda pa: [date(2024, 1, 1)] * ROWS), refused=("'v' holds date32",)),
    Door("bytes", parquet(lambda pa: [b"a"] * ROWS), refused=("'v' holds binary",)),
    Door("nothing in it", parquet(lambda pa: pa.nulls(ROWS)), refused=("'v' lacks 40 values",)),
    Door("broken words", parquet(_not_utf8), refused=("cannot be read as parquet", "UTF8")),
    Door("decimals", parquet(lambda pa: [Decimal("1.50")] * ROWS), {"features": ("age", "v")}),
    Door("half precision", parquet(lambda pa: pa.array([0.5] * ROWS, pa.float32()).cast(pa.float16())), {"train": 32}),
    Door("categories", parquet(lambda pa: pa.array(["abc"[row % 3] for row in range(ROWS)]).dictionary_encode()),
        {"features": ("age", "v=a", "v=b", "v=c")}),
]  # fmt: skip
