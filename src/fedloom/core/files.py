"""Where caches are, and writing to disk so that a reader never sees half a file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def cache_dir() -> Path:
    """What can be made again is kept here: $FEDLOOM_CACHE, else `fedloom` in the platform's cache folder (~/.cache)."""
    if own := os.environ.get("FEDLOOM_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedloom"


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write `data` to `path` whole or not at all: a temporary file beside it, flushed, then renamed.

    Raises `OSError` (a full disk, no permission) and then leaves `path` as it was.
    """
    raw = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
