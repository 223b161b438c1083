"""Files that are read whole: none that never ends, and names that can be printed."""

from __future__ import annotations

import stat
from pathlib import Path

from fedloom.core.errors import DataError, printable


def require_regular(path: Path) -> None:
    """Raises `DataError` for a pipe or device: reading one may never end. What is not there passes."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # the reader says it, in its own words
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{path}: is a pipe or a device; need a file")


def require_file(path: Path, need: str) -> None:
    """Raises `DataError` for a path that is no regular file, so that nothing waits for a pipe or reads a device.

    need: what the file should hold, for the message.
    """
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "is a pipe or a device" if path.exists() else "no such file"
        raise DataError(f"{printable(str(path))}: {kind}; need {need}")


def read_regular(path: Path) -> bytes:
    """The bytes of a file. Raises `DataError` for what cannot be read or is no file."""
    require_regular(path)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{printable(str(path))}: no such file") from None
    except OSError as error:
        raise DataError(f"{printable(str(path))}: cannot be read ({error.strerror})") from None
