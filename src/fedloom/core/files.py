"""Where caches are, JSON that everybody can read, and writing to disk so that a reader never sees half a file."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fedloom.core.errors import ConfigError

_SHARED_FILE, _PRIVATE_FILE, _PRIVATE_FOLDER = 0o644, 0o600, 0o700


def cache_dir() -> Path:
    """What can be made again is kept here: $FEDLOOM_CACHE, else `fedloom` in the platform's cache folder (~/.cache).

    Raises `ConfigError` where there is neither, nor a home directory.
    """
    if own := os.environ.get("FEDLOOM_CACHE"):
        return expanded(own)
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return expanded(base) / "fedloom"
    except ConfigError as error:
        raise ConfigError(f"no folder for the cache: {error}; or set FEDLOOM_CACHE to a folder of your own") from None


def expanded(path: Path | str) -> Path:
    """A path as a person writes it, with the home directory in the place of ~ or ~user at its beginning.

    Raises `ConfigError` where there is no such directory.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(
            f"{path}: no home directory is known for {Path(path).parts[0]}; write the path in full"
        ) from None


def in_full(value: Any) -> Any:
    """A value of a config as it is; a path `expanded`."""
    return expanded(value) if isinstance(value, Path) else value


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


def read_file(path: Path) -> bytes:
    """The content of a regular file. Raises `OSError`, also for a pipe or a device, which might never end."""
    with os.fdopen(os.open(path, os.O_RDONLY | _NONBLOCK), "rb") as stream:
        _refuse_irregular(path, os.fstat(stream.fileno()))
        return stream.read()


def open_to_append(path: Path) -> BinaryIO:
    """A regular file, made if it is not there, to be written at its end. Raises `OSError`, also for a link: what it
    points to may be somebody else's."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NONBLOCK | getattr(os, "O_NOFOLLOW", 0)
    stream = os.fdopen(os.open(path, flags, 0o666), "ab")
    try:
        _refuse_irregular(path, os.fstat(stream.fileno()))
    except OSError:
        stream.close()
        raise
    return stream


_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


def _refuse_irregular(path: Path, status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def refuse_unwritable(path: Path) -> None:
    """Raises `OSError` if `write_atomic` could not write to `path`, before there is anything to write."""
    if path.exists() and not path.is_symlink():
        _refuse_irregular(path, path.stat())
    folder = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_atomic(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Write `data` to `path` whole or not at all: a temporary file beside it, flushed, then renamed.

    A link at `path` is replaced, and what it points to stays as it is. private: the file can be read by its owner alone
    (0600), and folders made for it are 0700; otherwise the process' umask decides, as for any new file. Raises
    `OSError` (a full disk, no permission, a folder, a pipe or a device at `path`) and then leaves `path` as it was.
    """
    raw = data.encode(errors="backslashreplace") if isinstance(data, str) else data  # a name may hold bytes of no text
    if private:
        private_folder(path.parent)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
    refuse_unwritable(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE if private else _SHARED_FILE)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def private_folder(folder: Path) -> None:
    """Make a folder that its owner alone can enter (0700), with those above it that are missing.

    Raises `OSError` if it cannot be made.
    """
    for path in (*reversed(folder.parents), folder):
        if not path.is_dir():
            path.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)


def restrict(folder: Path) -> None:
    """Take the rights of group and others from a folder and all below it that this user owns; links are not followed.

    A folder that is missing is no error. Nothing happens where files have no owner, as on Windows.
    """
    if not hasattr(os, "getuid"):
        return
    for parent, folders, files in os.walk(folder, followlinks=False):
        for path in (Path(parent), *(Path(parent, name) for name in (*folders, *files))):
            with contextlib.suppress(FileNotFoundError):  # a file that another process has just renamed
                status = path.lstat()
                if not stat.S_ISLNK(status.st_mode) and status.st_uid == os.getuid() and status.st_mode & 0o077:
                    path.chmod(stat.S_IMODE(status.st_mode) & 0o700)


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Whatever this process writes meanwhile can be read by its owner alone: a umask of 077, also for libraries."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)
