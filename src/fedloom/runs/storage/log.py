"""metrics.jsonl: what a run measured, one row a line, appended while it goes on."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypedDict

from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text, open_to_append, parse_json, read_file, write_atomic


class Row(TypedDict):
    """One measured value. `client` is None for values of the whole run; `protocol` None for those without one.

    A value that is not finite, or as large as `LARGEST`, is null in the file.
    """

    round: int
    client: int | None
    split: str
    protocol: str | None
    name: str
    value: float


CALLBACK_SPLIT = "callback"  # of the rows that hold measures of callbacks
LARGEST = 1e300  # of a value: sums of such values are still finite
_KEYS = Row.__annotations__.keys()


class LogPosition(NamedTuple):
    """Size of a log in bytes, and the sha256 of its content."""

    size: int
    sha256: str


class MetricsLog:
    """The rows of one run on disk. A line that a crash cut off is no row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size, self._sha256 = 0, hashlib.sha256()

    def append(self, rows: Iterable[Row]) -> None:
        """Add rows at the end."""
        bounded = (row if abs(row["value"]) < LARGEST else Row(**{**row, "value": math.nan}) for row in rows)
        text = "".join(json_text(row) + "\n" for row in bounded).encode()
        with open_to_append(self.path) as stream:
            stream.write(text)
        self._size += len(text)
        self._sha256.update(text)

    def flush(self) -> LogPosition:
        """Write the log to the disk and return its size and sha256."""
        with open_to_append(self.path) as stream:
            os.fsync(stream.fileno())
        return LogPosition(self._size, self._sha256.hexdigest())

    def starts_with(self, position: LogPosition) -> bool:
        """Return whether the first bytes of the log are those of `position`."""
        return self._until(position).hexdigest() == position.sha256

    def truncate(self, position: LogPosition) -> list[Row]:
        """Delete the rows after a position, whose rounds will be run again, and return the remaining rows."""
        if self.path.exists() and self.path.lstat().st_nlink > 1:  # a copy of hard links shares the file
            write_atomic(self.path, self._bytes())
        with open_to_append(self.path) as stream:
            stream.truncate(position.size)
        self._size, self._sha256 = position.size, self._until(position)
        return self.rows()

    def rows(self) -> list[Row]:
        """All complete rows. Raises `RunFolderError` for a line that is no row."""
        lines = self._bytes().splitlines(keepends=True)
        return [self._row(number, line) for number, line in enumerate(lines, start=1) if line.endswith(b"\n")]

    def position(self) -> LogPosition:
        """Return size and sha256 of the file as it is."""
        content = self._bytes()
        return LogPosition(len(content), hashlib.sha256(content).hexdigest())

    def _row(self, number: int, line: bytes) -> Row:
        try:
            row: Row = parse_json(line)
            if row.keys() != _KEYS or not _is_row(row):
                raise ValueError
        except (ValueError, AttributeError):
            raise RunFolderError(
                f"{self.path}: line {number} is damaged; put the file back, or delete the run folder and run again"
            ) from None
        if row["value"] is None:
            row["value"] = math.nan
        return row

    def _until(self, position: LogPosition) -> hashlib._Hash:
        return hashlib.sha256(self._bytes()[: position.size])

    def _bytes(self) -> bytes:
        try:
            return read_file(self.path)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise RunFolderError(f"{self.path}: cannot be read ({error.strerror})") from None


def _is_row(row: Row) -> bool:
    """Whether the values of a row with all keys can be some that a run wrote."""
    client, value = row["client"], row["value"]
    numbers = [number for number in (row["round"], client, value) if number is not None]
    texts = [text for text in (row["split"], row["name"], row["protocol"]) if text is not None]
    return (
        all(type(number) in (int, float) and abs(number) < LARGEST for number in numbers)
        and all(isinstance(text, str) for text in texts)
        and None not in (row["split"], row["name"])
        and type(row["round"]) is int
        and row["round"] >= 0
        and (client is None or type(client) is int)
    )


START = LogPosition(0, hashlib.sha256().hexdigest())
