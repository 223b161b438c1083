"""Table files as pyarrow tables: checks of the raw file first, then pyarrow reads it.

pyarrow reads from memory, in the calling thread: a process that exits while pyarrow's own threads start is aborted."""

import bz2
import codecs
import contextlib
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from csv import Error as CsvError
from csv import reader as csv_lines
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fedloom.core.errors import DataError, short_repr
from fedloom.core.files import package_table
from fedloom.data.dataset import require_memory
from fedloom.data.sources.tables.columns import CellFormat, ReadingError, is_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import csv

_BLOCK = 2**31 - 1  # the largest block that pyarrow takes
_PIECE = 2**24
_SHOWN = 3  # names in a message
_SEPARATORS = {";": "';'", "\t": "a tab", "|": "'|'", ",": "','", " ": "spaces"}
_STATED = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([^\r\n])"?[^\w\r\n]*\r?\n', re.IGNORECASE)  # Excel's first line
_ANY_NUMBER = re.compile(r"[-+]?[\d.,' ]*\d[\d.,' ]*(?:[eE][-+]?\d+)?")  # in any spelling
_LOOKED_AT, _MOST_TITLES = 200, 20  # lines
_FORMATS = package_table(Path(__file__).parents[1] / "formats.toml")
_MAGIC = {bytes.fromhex(start): kind for start, kind in _FORMATS["magic"].items()}
NO_HEADER = "its first line looks like a row; put a line with the columns' names there"
_UNPACK: dict[str, Callable[[Path], IO[bytes]]] = {".gz": gzip.open, ".bz2": bz2.open}  # type: ignore[dict-item]
_WRITTEN_INDEX = re.compile(r"Unnamed: 0(\.\d+)*")  # pandas names a nameless column so when it reads a file


@dataclass(frozen=True, slots=True)
class TableFile:
    """The columns of a file by name [n rows each], and the names of the row index that was written too. left_out:
    sentences on lines and columns that are no part of the table. reread: reads columns as texts; None for typed
    files."""

    path: Path
    columns: "dict[str, pa.ChunkedArray]"
    rows: int
    index: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    reread: "Callable[[Sequence[str]], Mapping[str, pa.ChunkedArray]] | None" = None

    def texts(self, names: Sequence[str]) -> "dict[str, pa.ChunkedArray]":
        """Return the cells of some columns as they are written; those of a file with kinds as they are stored."""
        guessed = [] if self.reread is None else [name for name in names if not is_text(self.columns[name].type)]
        read = self.reread(guessed) if self.reread is not None and guessed else {}
        return {name: read.get(name, self.columns[name]) for name in names}

    def notes(self, dropped: Collection[str]) -> list[str]:
        """Return sentences on columns that were left out: empty ones, and row indices among those dropped."""
        names = [f"'{name}'" if name else "the first, which has no name" for name in self.index if name in dropped]
        notes = [f"{self.path}: row index left out, it is no feature: {', '.join(names)}"] if names else []
        if self.reread is not None and looks_like_a_row(self.columns) and not _counts_on(self.columns):
            name = next(name for name in self.columns if CellFormat().number(name) is not None)
            detail = "if the first line is a row, put a line with the columns' names there"
            notes.append(f"{self.path}: most columns are called by numbers, such as '{name}'; {detail}")
        return [*notes, *(f"{self.path}: {sentence}" for sentence in self.left_out)]


def read_csv(path: Path, separator: str, encoding: str, decimal: str, missing: Collection[str] | None) -> TableFile:
    """Read a CSV file with a header; separator, encoding, decimal as in the source `csv`. missing: cells that stand for
    missing numbers, next to empty ones; None takes pyarrow's. Titles above the header, units below it and its copies
    are left out. Raises `DataError` for a file that is compressed, in another encoding, without a header, with rows of
    different lengths, or with a quote that is never closed."""
    import pyarrow as pa
    from pyarrow import csv

    raw = _raw(path)
    encoding = _encoding(raw, encoding, path)
    if encoding == "utf-16":
        raw, encoding = raw.decode(encoding).encode(), "utf-8"
    if (stated := _STATED.match(raw)) is not None:
        raw, separator = raw[stated.end() :], stated[1].decode()
    raw, left_out = _plain_table(raw, separator, encoding)
    _refuse_other_separator(raw, separator, encoding, path)
    uneven: list[csv.InvalidRow] = []

    def skip(row: "csv.InvalidRow") -> str:
        uneven.append(row)
        return "skip"

    def parsed(options: "csv.ConvertOptions") -> "pa.Table":
        return csv.read_csv(
            pa.BufferReader(raw),
            read_options=csv.ReadOptions(  # one block: the kind of a column is inferred from all rows
                use_threads=False, block_size=min(max(len(raw) + 1, 2**20), _BLOCK), encoding=encoding
            ),
            parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=True, invalid_row_handler=skip),
            convert_options=options,
        )

    def texts(names: Sequence[str]) -> "Mapping[str, pa.ChunkedArray]":
        kinds = dict.fromkeys(names, pa.string())
        return dict(_named(parsed(csv.ConvertOptions(column_types=kinds, include_columns=list(names)))))

    options = csv.ConvertOptions(decimal_point=decimal)
    if missing is not None:
        options.null_values = ["", *missing]
    table = parsed(options)
    if uneven:
        _refuse_uneven(uneven, raw, table.num_rows, path)
    is_left_out = {name: not name and column.null_count == len(column) for name, column in _named(table)}
    columns = {name: values for name, values in _named(table) if not is_left_out[name]}
    _refuse_names([name for name in table.column_names if not is_left_out[name]], path)
    _refuse_first_row(columns, path)
    if "" in columns and table.column_names[0]:
        raise DataError(f"{path}: column {table.column_names.index('') + 1} has no name; give it one")
    if raw.count(b'"') % 2:
        _refuse_open_quote(columns, path)
    index = tuple(name for name in columns if not name or _WRITTEN_INDEX.fullmatch(name))
    if is_left_out.get("", False):
        left_out.append("a column without a name and without a value was left out; lines end with a separator")
    return TableFile(path, columns, table.num_rows, index, tuple(left_out), texts)


def read_parquet(path: Path) -> TableFile:
    """Read a Parquet file; its index are the columns that pandas' metadata call so."""
    import pyarrow as pa
    from pyarrow import parquet

    require_memory(path.stat().st_size, str(path))
    with parquet.ParquetFile(pa.BufferReader(path.read_bytes())) as file:
        require_memory(8 * file.metadata.num_rows * file.metadata.num_columns, str(path))
        table = file.read(use_threads=False)
    table.validate(full=True)  # texts that are no UTF-8, offsets outside the file
    _refuse_names(table.column_names, path)
    columns = dict(_named(table))
    return TableFile(path, columns, table.num_rows, _pandas_index(table.schema.metadata, columns))


def _named(table: "pa.Table") -> "list[tuple[str, pa.ChunkedArray]]":
    return list(zip(table.column_names, table.columns, strict=True))


def _raw(path: Path) -> bytes:
    """Read a file, unpacked if its name ends in .gz or .bz2. Raises `DataError` if it is not text."""
    require_memory(path.stat().st_size, str(path))
    with path.open("rb") as stream:
        start = stream.read(16)
        kind = next((problem for magic, problem in _MAGIC.items() if start.startswith(magic)), None)
        if kind is None:
            stream.seek(0)
            return stream.read()
    if path.suffix not in _UNPACK:
        raise DataError(f"{path}: is {kind}")
    pieces, size = [], 0
    with _UNPACK[path.suffix](path) as unpacked:
        while piece := unpacked.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            require_memory(size, str(path))
    return b"".join(pieces)


def start_of_text(path: Path, size: int) -> bytes:
    """Return the first bytes (up to size) of a file's text, unpacked by its suffix; nothing if it is damaged."""
    with path.open("rb") as stream:
        start = stream.read(size)
    if path.suffix not in _UNPACK or not start.startswith((b"\x1f\x8b", b"BZh")):
        return start
    try:
        with _UNPACK[path.suffix](path) as unpacked:
            return unpacked.read(size)
    except (OSError, EOFError, zlib.error):
        return b""


def _pandas_index(metadata: Any, columns: Collection[str]) -> tuple[str, ...]:
    """Return the index columns that pandas states in a schema's metadata; an index that is a range has no column."""
    try:
        stated = json.loads((metadata or {}).get(b"pandas", b"{}")).get("index_columns", [])
        names = [name for name in stated if isinstance(name, str)]
    except (ValueError, AttributeError, TypeError):  # metadata of another program under the same key
        names = []
    return tuple(name for name in columns if name in names or re.fullmatch(r"__index_level_\d+__", name))


def _encoding(raw: bytes, encoding: str, path: Path) -> str:
    """Return the encoding by the byte order mark, else as stated. Raises `DataError` if the bytes are in another."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\x00" in raw:
        row = raw[: raw.index(b"\x00")].count(b"\n") + 1
        what = f"line {row} holds a NUL byte: no text, or UTF-16 without its mark"
        raise DataError(f"{path}: {what}; convert it to UTF-8")
    if encoding in ("utf-8", "utf8", "UTF-8"):
        decoder, end = codecs.getincrementaldecoder("utf-8")(), 0
        try:
            while end < len(raw):  # in pieces, to save memory
                start, end = end, min(end + _PIECE, len(raw))
                decoder.decode(memoryview(raw)[start:end], final=end == len(raw))
        except UnicodeDecodeError as error:
            at = end - len(error.object) + error.start
            raise ReadingError(
                f"{path}: byte {at} (0x{raw[at]:02x}, line {raw[:at].count(10) + 1}) is not UTF-8",
                "convert the file to UTF-8, or say which encoding it has, e.g. `encoding: latin-1`",
                "convert the file to UTF-8",
            ) from None
    return encoding


def _plain_table(raw: bytes, separator: str, encoding: str) -> tuple[bytes, list[str]]:
    """Return the text of a table without titles above its header, units below it and copies of it, and sentences on
    what was left out. Runs of spaces are one separator where cells are separated by spaces."""
    rows = _first_rows(raw, separator, encoding)
    if separator == " " and (len({len(row) for row, _ in rows}) > 1 or "" in (rows or [([], 0)])[0][0]):
        pieces = raw.strip(b" ").split(b'"')  # every other one is outside quotes
        pieces[::2] = [re.sub(rb"(?<=\n) +| +(?=\r?\n)|(?<= ) +", b"", piece) for piece in pieces[::2]]
        raw = b'"'.join(pieces)
        rows = _first_rows(raw, separator, encoding)
    if len(rows) < 3:
        return raw, []
    width, left_out = Counter(len(row) for row, _ in rows).most_common(1)[0][0], list[str]()
    filled = width - all(not row[-1] for row, _ in rows if len(row) == width)  # lines may end with a separator

    def is_header(row: list[str]) -> bool:
        return len(row) == width > 1 and all(row[1:filled]) and not any(map(_ANY_NUMBER.fullmatch, row))

    top = next((place for place, (row, _) in enumerate(rows[:_MOST_TITLES]) if is_header(row)), 0)
    sizes = [sum(map(bool, row)) for row, _ in rows[:top]]
    # R leaves out the name of the first column, which holds row names.
    if top and max(sizes) < filled and sizes[0] < max(filled - 1, 2):
        left_out.append(f"lines above the header were left out ({top}): {short_repr(' '.join(rows[0][0]).strip())}")
        raw = raw.split(b"\n", rows[top][1])[-1]
        rows = _first_rows(raw, separator, encoding)
    columns = [*zip(*(row for row, _ in rows if len(row) == width), strict=True)]
    if not is_header(rows[0][0]) or len(rows) < 3 or len(rows[1][0]) != width:
        return raw, left_out
    of_numbers = [2 * sum(bool(_ANY_NUMBER.fullmatch(cell)) for cell in cells) > len(cells) for cells in columns]
    units = [cells[1] for cells, holds in zip(columns, of_numbers, strict=True) if holds and cells[1].strip("-? ")]
    is_new = all(not cells[1].strip("-[] ") or cells.count(cells[1]) == 1 for cells in columns)
    if units and is_new and not any(_ANY_NUMBER.fullmatch(cells[1]) for cells in columns):
        left_out.append(f"line {rows[1][1] + 1} holds units, no row, and was left out: {', '.join(units)[:200]}")
        *lines, rest = raw.split(b"\n", rows[1][1] + 1)
        raw = b"\n".join([*lines[:-1], rest])
    if any(of_numbers):
        copy = rb"(?<=\n)" + re.escape(raw.partition(b"\n")[0]) + rb"(?:\n|\Z)"
        raw, copies = re.subn(copy, b"", raw)
        left_out += [f"lines that repeat the header were left out: {copies:,}"] if copies else []
    return raw, left_out


def _first_rows(raw: bytes, separator: str, encoding: str) -> list[tuple[list[str], int]]:
    """Return the cells of the first lines that are not blank, and the lines before each; fewer if a quote goes on."""
    sample = raw[: 2**18].decode(encoding, errors="replace").removeprefix("\ufeff")
    reader = csv_lines(io.StringIO(sample, newline="\n"), delimiter=separator)
    rows, before = list[tuple[list[str], int]](), 0
    with contextlib.suppress(CsvError):
        for row in islice(reader, _LOOKED_AT):
            if any(row):
                rows.append(([cell.strip() for cell in row], before))
            before = reader.line_num
    return rows if len(raw) <= 2**18 else rows[:-1]


def usual_separator(text: str) -> str | None:
    """Return the character that separates the cells of a table's first lines; None for a single column."""
    lines = [line for line in text.splitlines()[:_LOOKED_AT] if line.strip()] or [""]
    marks = [*_SEPARATORS][:-1]
    if not any(map(lines[0].count, marks)) and len({len(line.split()) for line in lines[:-1]}) == 1:
        return " " if len(lines[0].split()) > 1 else None
    return next((max(marks, key=line.count) for line in lines[:_MOST_TITLES] if any(map(line.count, marks))), None)


def looks_like_a_row(names: Collection[str]) -> bool:
    """Tell whether most of the names in a header are numbers."""
    return 2 * sum(CellFormat().number(name) is not None for name in names) > len(names)


def _counts_on(names: Collection[str]) -> bool:
    """Tell whether the numbers among the names are consecutive, as programs name the columns of an array."""
    numbers = sorted(number for name in names if (number := CellFormat().number(name)) is not None)
    return all(after == number + 1 for number, after in pairwise(numbers))


def _refuse_first_row(columns: "Mapping[str, pa.ChunkedArray]", path: Path) -> None:
    """Raise `DataError` if the header is a data row: most names are numbers, or also occur as cells below."""
    numbers = {name for name in columns if CellFormat().number(name) is not None}
    counted = numbers if _counts_on(numbers) else set[str]()
    cells = [name for name, values in columns.items() if name not in counted and _holds(values, name)]
    words = [name for name in cells if name not in numbers]
    cell_like = {*cells, *(numbers - counted)} if words else cells
    if 2 * len(cell_like) > len(columns):
        shown = ", ".join(short_repr(name) for name in [*words, *(name for name in cells if name in numbers)][:_SHOWN])
        raise DataError(f"{path}: {NO_HEADER}: {shown} occur in their own columns")


def _holds(values: "pa.ChunkedArray", name: str) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    number = CellFormat().number(name)
    if is_text(values.type):
        return bool(pc.index(values, name).as_py() >= 0)
    if pa.types.is_boolean(values.type):
        return name.lower() in ("true", "false")
    if number is None or not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return False
    return bool(pc.any(pc.equal(values.cast(pa.float64(), safe=False), float(number))).as_py())


def _refuse_names(names: list[str], path: Path) -> None:
    odd = next((name for name in names if not name.isprintable()), None)
    if odd is not None:
        raise DataError(f"{path}: a column is called {short_repr(odd)}; take line breaks and control characters away")
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1 and looks_like_a_row(names):
        raise DataError(f"{path}: {NO_HEADER}")
    if count > 1:
        raise DataError(f"{path}: two columns are called '{name}'; give each a different name")


def _refuse_other_separator(raw: bytes, separator: str, encoding: str, path: Path) -> None:
    """Raise `DataError` if the header is one column that another separator would split."""
    header = raw[: 2**16].decode(encoding, errors="replace").removeprefix("\ufeff").split("\n")[0].split("\r")[0]
    candidate = usual_separator(raw[: 2**16].decode(encoding, errors="replace").removeprefix("\ufeff"))
    if separator not in header and candidate not in (None, separator):
        raise ReadingError(
            f"{path}: its only column is {short_repr(header)}; cells look separated by {_SEPARATORS[candidate]}",
            f"say `separator: {json.dumps(candidate)}`",
            f"need {_SEPARATORS.get(separator, separator)} between them, as in the run's own files",
        )


def _refuse_uneven(rows: "list[csv.InvalidRow]", raw: bytes, complete: int, path: Path) -> None:
    """Raise `DataError` for rows with more or fewer cells than the header."""
    first = rows[0]
    expected, count = first.expected_columns, first.actual_columns
    line = raw[: max(0, raw.find(first.text.encode()))].count(b"\n") + 1
    hint = "mend them"
    if "\n" in first.text or "\r" in first.text:
        hint = "a quote is not closed, or precedes a cell's text"
    elif not complete and count == expected + 1:
        hint = "name the first column if it holds row names, or take away the separator at the end of the lines"
    raise DataError(
        f"{path}: cannot be read as csv (Expected {expected} columns, got {count} in line {line}: "
        f"{short_repr(first.text)}); rows with another number of cells than the header: {len(rows):,}; {hint}"
    )


def _refuse_open_quote(columns: "dict[str, pa.ChunkedArray]", path: Path) -> None:
    """Raise `DataError` for a cell with line breaks, where the file's number of quotes is odd."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for name, values in columns.items():
        if pa.types.is_string(values.type):
            row = pc.index(pc.match_substring_regex(values, r"[\r\n]"), True).as_py()
            if row >= 0:
                raise DataError(
                    f"{path}: the cell of column '{name}' in row {row + 1} goes over several lines, and the file has "
                    "an odd number of quotes: a quote is not closed"
                )
