"""Checks that a path is a regular file, because reading a pipe or a device may never end."""

from __future__ import annotations

import stat
from pathlib import Path

from fedloom.core.errors import DataError, printable
from fedloom.core.files import read_file


def require_regular(path: Path) -> None:
    """Raise `DataError` for a pipe or a device. Missing files pass: their reader reports them."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{printable(str(path))}: is a pipe or a device; need a file")


def require_file(path: Path, need: str) -> None:
    """Raise `DataError` unless `path` is a regular file. The message says what the file should hold: `need`."""
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "is a pipe or a device" if path.exists() else "no such file"
        raise DataError(f"{printable(str(path))}: {problem}; need {need}")


def read_regular(path: Path) -> bytes:
    """Read a regular file. Raises `DataError` for anything else, and for files that cannot be read."""
    try:
        return read_file(path)
    except FileNotFoundError:
        raise DataError(f"{printable(str(path))}: no such file") from None
    except OSError as error:
        require_regular(path)
        raise DataError(f"{printable(str(path))}: cannot be read ({error.strerror})") from None
