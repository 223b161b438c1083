"""Where caches are, JSON that everybody can read, and writing to disk so that a reader never sees half a file."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def cache_dir() -> Path:
    """What can be made again is kept here: $FEDLOOM_CACHE, else `fedloom` in the platform's cache folder (~/.cache)."""
    if own := os.environ.get("FEDLOOM_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fedloom"


def json_text(value: Any, **how: Any) -> str:
    """`value` as JSON; numbers that are not finite become null, for JSON has no others. how: as for `json.dumps`."""
    return json.dumps(_finite(value), allow_nan=False, **how)


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds. Raises `ValueError` for what is none, or nests too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


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
