"""Small tables for doors: a measured column `age`, a column `v` of the case, and the label `ill`."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROWS = 40
AGES = [row % 7 + 0.5 for row in range(ROWS)]
ILL = [("yes", "no")[row % 2] for row in range(ROWS)]
NUMBERS = [f"{row * 1.5 + 0.25}" for row in range(ROWS)]

Write = Callable[[Path], dict[str, Any]]


def text_of(columns: dict[str, Iterable[Any]], separator: str = ",") -> str:
    """A CSV of columns; a cell with the separator is quoted."""
    cells = [
        [f'"{cell}"' if separator in str(cell) else str(cell) for cell in row]
        for row in zip(*columns.values(), strict=True)
    ]
    return "".join(separator.join(row) + "\n" for row in [list(columns), *cells])


def raw(content: str | bytes, name: str = "set.csv", **keys: Any) -> Write:
    """Any content as a CSV file."""

    def write(folder: Path) -> dict[str, Any]:
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return {"source": "csv", "path": path, "label": "ill", **keys}

    return write


def column(cells: Iterable[Any], labels: Sequence[Any] = ILL, **keys: Any) -> Write:
    """A CSV with a column `v` of these cells."""
    return raw(text_of({"age": AGES, "v": cells, "ill": labels}, keys.get("separator", ",")), **keys)


def by_row(cell: Callable[[int], Any], **keys: Any) -> Write:
    """A CSV whose column `v` holds `cell(row)`."""
    return column(map(cell, range(ROWS)), **keys)


def odd(cell: str, **keys: Any) -> Write:
    """A CSV whose column `v` holds numbers, and `cell` in rows 6 and 9."""
    return column([*NUMBERS[:5], cell, *NUMBERS[6:8], cell, *NUMBERS[9:]], **keys)


def labels(words: Sequence[Any], **keys: Any) -> Write:
    """A CSV whose label takes these values in turn."""
    return column(NUMBERS, [words[row % len(words)] for row in range(ROWS)], **keys)


def parquet(make: Callable[[Any], Any], **keys: Any) -> Write:
    """A Parquet file with a column `v` that `make` makes of the module pyarrow."""

    def write(folder: Path) -> dict[str, Any]:
        import pyarrow as pa
        from pyarrow import parquet as files

        files.write_table(pa.table({"age": AGES, "v": make(pa), "ill": ILL}), folder / "set.parquet")
        return {"source": "parquet", "path": folder / "set.parquet", "label": "ill", **keys}

    return write


def two(train: dict[str, Iterable[Any]], test: dict[str, Iterable[Any]], **keys: Any) -> Write:
    """A CSV with training rows and another one with test rows."""

    def write(folder: Path) -> dict[str, Any]:
        (folder / "other.csv").write_text(text_of(test))
        return raw(text_of(train), test_path=folder / "other.csv", **keys)(folder)

    return write
