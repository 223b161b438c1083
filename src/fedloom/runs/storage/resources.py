"""Errors of a full disk and of exhausted memory, in one line that says what to do."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from fedloom.core.errors import ClientError, RunFolderError

_DISK = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than is allowed here (ulimit -f)",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)  # whoever writes next meets them, too
_MEMORY = ("can't allocate memory", "CUDA out of memory")  # in what torch raises


@contextlib.contextmanager
def explain_shortage(path: Path) -> Iterator[None]:
    """Within it, a full disk and a lack of memory are `RunFolderError`s that say what to do."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError, ClientError) as error:
        cause = error.__cause__ if isinstance(error, ClientError) else error
        if isinstance(cause, OSError) and cause.errno in _DISK:
            problem = f"{_DISK[cause.errno]}; the last checkpoint is intact: free space"
        elif _lacks_memory(cause):
            problem = "out of memory; the last checkpoint is intact: take fewer engine.workers or a smaller batch_size"
        else:
            raise
        raise RunFolderError(f"{path}: {problem} and go on with --resume") from error


@contextlib.contextmanager
def stopped_by_full_disk(folder: Path) -> Iterator[None]:
    """Within it, a full disk is a `RunFolderError` that says how the comparison or study in this folder continues."""
    try:
        yield
    except (OSError, RunFolderError) as error:
        problem = full_disk_message(error)
        if problem is None:
            raise
        raise RunFolderError(
            f"{folder}: {problem}; its runs have stopped, and their last checkpoints are intact: free space there, and "
            "the same command continues"
        ) from error


def full_disk_message(error: BaseException | None) -> str | None:
    """Return the message of a full disk if one caused the error, else None."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return _DISK[error.errno]
        error = error.__cause__ or error.__context__
    return None


def _lacks_memory(error: BaseException | None) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _MEMORY)
