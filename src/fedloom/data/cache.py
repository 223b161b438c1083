"""Caches parsed data on disk as memory-mapped arrays; slow files are parsed only once."""

import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import DTypeLike

from fedloom._version import __version__
from fedloom.core.errors import DataError
from fedloom.core.files import cache_dir, parse_json

_FORMAT = 4  # raise it also when a source starts to parse the same files differently: old entries are then ignored
_WAIT_SECONDS = 1800.0
_BLOCK = 2**20
_CHECKED_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """Arrays mapped from disk (writing to one changes memory only) and JSON values."""

    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


class CacheWriter:
    """Writes the arrays of a cache entry that is being made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checksums: dict[str, int] = {}
        self._open: dict[str, np.ndarray] = {}

    def new(self, name: str, shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
        """Return an array on disk of `shape` and `dtype`; fill it, then pass it to `add`. A second of the same `name`
        replaces it. Raises `DataError` where the disk is full."""
        path = self.folder / f"{name}.npy"
        with _writing(self.folder):
            path.unlink(missing_ok=True)  # truncating a file that is still mapped would crash its readers
            array = np.lib.format.open_memmap(path, "w+", dtype=np.dtype(dtype), shape=shape)
            if hasattr(os, "posix_fallocate"):  # a full disk must be an error here, not a crash at some later write
                with path.open("r+b") as stream:
                    os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
        self._open[name] = array
        return array

    def add(self, name: str, array: np.ndarray) -> None:
        """Add `array` as `name`. An array that `new` returned for that name is not written again."""
        if name not in self._open or not np.shares_memory(array, self._open[name]):
            with _writing(self.folder):
                path = self.folder / f"{name}.npy"
                path.unlink(missing_ok=True)  # as above
                np.save(path, array, allow_pickle=False)
        self.checksums[name] = checksum(array)


def cached(
    label: str, keys: Mapping[str, Any], files: Sequence[Path], build: Callable[[CacheWriter], Any]
) -> CacheEntry:
    """Return the cache entry of a label and keys (JSON values); `build` makes it (its JSON values are the `meta`) if it
    is missing, damaged, or older than the files. Raises `DataError` for missing files and an unwritable cache."""
    text = json.dumps(keys, sort_keys=True, default=str)
    folder = cache_dir() / "arrays" / f"{label}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    stamp = _stamp(files)
    entry = _opened(folder, stamp)
    if entry is not None:
        return entry
    try:
        with _writing(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # copies of data that may be private
            lock = FileLock(f"{folder}.lock", timeout=_WAIT_SECONDS)
            lock.acquire()
    except Timeout:
        waited = f"another process has been making it for {_WAIT_SECONDS:.0f} s"
        raise DataError(f"cache {folder}: {waited}; end that process first") from None
    try:
        # Look again under the lock: another process may have made the entry while this one waited.
        entry = _opened(folder, stamp) or _made(folder, stamp, build)
    finally:
        lock.release()
    return entry


def checksum(array: np.ndarray) -> int:
    """Return the CRC of shape, dtype and contents of a C-contiguous array; above 256 MiB, of evenly spaced blocks."""
    value = zlib.crc32(f"{array.dtype.str}{array.shape}".encode())
    raw = array.reshape(-1).view(np.uint8).data
    blocks = -(-len(raw) // _BLOCK)
    # Always check the last block: a truncated write damages the end of a file.
    for block in sorted({*range(0, blocks, max(1, -(-blocks // _CHECKED_BLOCKS))), blocks - 1}):
        value = zlib.crc32(raw[block * _BLOCK : (block + 1) * _BLOCK], value)
    return value


def _opened(folder: Path, stamp: str, *, fresh: bool = False) -> CacheEntry | None:
    """Return an intact entry, of this version and these files; checksums of a `fresh` entry are not checked."""
    try:
        description = parse_json((folder / "entry.json").read_text(encoding="utf-8"))
        if description["made_by"] != _made_by() or description["stamp"] != stamp:
            return None
        arrays = {}
        for name, expected in description["arrays"].items():
            # copy-on-write: torch wants memory that it may write to, the file stays as it is
            array = np.asarray(np.load(folder / f"{name}.npy", mmap_mode="c", allow_pickle=False))
            if not fresh and checksum(array) != expected:
                return None
            arrays[name] = array
        return CacheEntry(arrays, description["meta"])
    except Exception:  # an entry that cannot be read for any reason is made again
        return None


def _made(folder: Path, stamp: str, build: Callable[[CacheWriter], Any]) -> CacheEntry:
    """Build the entry in a temporary folder, then rename it to `folder`. The caller holds the lock."""
    for abandoned in folder.parent.glob(f".{folder.name}.*"):  # left by a process that was killed
        _remove(abandoned)
    with _writing(folder.parent):
        temporary_folder = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        writer = CacheWriter(temporary_folder)
        meta = build(writer)
        description = {"made_by": _made_by(), "stamp": stamp, "arrays": writer.checksums, "meta": meta}
        with _writing(folder.parent):
            (temporary_folder / "entry.json").write_text(json.dumps(description), encoding="utf-8")
            # A folder cannot replace another in one step, so the old one is moved away first. Open memory maps of it
            # stay valid.
            old_folder = temporary_folder.with_name(f"{temporary_folder.name}.old")
            if folder.exists():
                folder.rename(old_folder)
            temporary_folder.rename(folder)
            _remove(old_folder)
    except BaseException:
        _remove(temporary_folder)
        raise
    entry = _opened(folder, stamp, fresh=True)
    if entry is None:
        raise DataError(f"cache {folder}: what was just written cannot be read back; is the disk sound?")
    return entry


def _stamp(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        try:
            stat = path.stat()
        except FileNotFoundError:
            raise DataError(f"{path}: no such file") from None
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror})") from None
        digest.update(os.fsencode(path.absolute()) + f"\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return digest.hexdigest()


def _made_by() -> list[Any]:
    return [_FORMAT, __version__]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except Timeout:  # an OSError too, and a case of its own
        raise
    except OSError as error:
        why = f"cannot be written ({error.strerror}); set FEDLOOM_CACHE to one that can"
        raise DataError(f"cache folder {folder}: {why}") from None
