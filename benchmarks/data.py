"""Committed measurements: gzipped CSV files in results/, tidy, with numbers exactly as they were measured."""

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.core.files import write_atomic

RESULTS = Path(__file__).parent / "results"
Row = dict[str, Any]
_LEVELS = {  # the columns of nested results, one per level
    "engines": ("part", "quantity", "contestant", "statistic"),
    "advice": ("scenario", "quantity"),
    "gpu": ("part", "contestant", "statistic"),
}


def read_rows(path: Path) -> list[Row]:
    """Read the rows of a file; a row has no key for an empty field."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        return [{column: _value(text) for column, text in row.items() if text} for row in csv.DictReader(stream)]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of numbers, texts, lists and dictionaries; equal rows make equal files."""
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_text(row[column]) if column in row else "" for column in columns] for row in rows)
    write_atomic(path, gzip.compress(text.getvalue().encode(), mtime=0))


def tree_rows(tree: Mapping[str, Any], columns: Sequence[str]) -> Iterator[Row]:
    """Yield one row per leaf of nested dictionaries, whose keys fill `columns`, one column per level."""
    for key, entry in tree.items():
        if isinstance(entry, Mapping) and entry and len(columns) > 1:
            yield from ({columns[0]: key, **row} for row in tree_rows(entry, columns[1:]))
        else:
            yield {columns[0]: key, "value": entry}


def rows_tree(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> dict[str, Any]:
    """Return the nested dictionaries from which `tree_rows` made these rows."""
    tree: dict[str, Any] = {}
    for row in rows:
        keys = [str(row[column]) for column in columns if column in row]
        parent = tree
        for key in keys[:-1]:
            parent = parent.setdefault(key, {})
        parent[keys[-1]] = row["value"]
    return tree


def read_results(name: str) -> dict[str, Any]:
    """Read nested results, e.g. those of "engines" by part; empty if there are none yet."""
    path = RESULTS / f"{name}.csv.gz"
    return rows_tree(read_rows(path), _LEVELS[name]) if path.exists() else {}


def write_results(name: str, tree: Mapping[str, Any]) -> None:
    """Write nested results."""
    write_rows(RESULTS / f"{name}.csv.gz", list(tree_rows(tree, _LEVELS[name])))


def _text(value: Any) -> str:
    """A field: JSON, but a text that cannot be taken for JSON stands for itself."""
    if isinstance(value, str) and value and _value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
