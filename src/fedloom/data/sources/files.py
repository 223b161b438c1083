"""A folder or an archive as named files. Archives are read where they are: nothing is ever unpacked to disk."""

from __future__ import annotations

import hashlib
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from fedloom.core.errors import DataError
from fedloom.core.files import cache_dir

_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    tarfile.TarError,
)
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def data_dir() -> Path:
    """Where a source looks that is given no `path`: $FEDLOOM_DATA, else `data` in the cache folder."""
    own = os.environ.get("FEDLOOM_DATA")
    return Path(own).expanduser() if own else cache_dir() / "data"


class Files:
    """Files of one folder, by their path relative to it ("train/cat/1.png")."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """All names, sorted; hidden files are left out."""
        found = (
            Path(folder, name).relative_to(self.path).as_posix()
            for folder, _, names in os.walk(self.path)
            for name in names
        )
        return sorted(name for name in found if not _hidden(name))

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Name and contents, in the order that is cheapest to read. Raises `DataError` for what cannot be read."""
        for name in names:
            try:
                yield name, (self.path / name).read_bytes()
            except FileNotFoundError:
                raise DataError(f"{self.path / name}: no such file") from None
            except OSError as error:
                raise DataError(f"{self.path / name}: cannot be read ({error.strerror})") from None

    def read(self, name: str) -> bytes:
        return next(iter(self.each([name])))[1]

    def label(self, name: str) -> str:
        """The file as messages name it."""
        return str(self.path / name)

    def stamped(self, names: Sequence[str] | None = None) -> list[Path]:
        """The paths whose sizes and times say whether `names` (or all) have changed."""
        return [self.path / name for name in (self.names() if names is None else names)]


class _Archive(Files):
    """Members of an archive; a single folder around all of them is left out of their names."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            listed = [name for name in self._list() if not _hidden(_safe(path, name))]
        except _DAMAGE as error:
            raise _damaged(path, error) from None
        tops = {name.partition("/")[0] for name in listed}
        top = f"{tops.pop()}/" if len(tops) == 1 and all("/" in name for name in listed) else ""
        self._members = {name.removeprefix(top): name for name in listed}

    def names(self) -> list[str]:
        return sorted(self._members)

    def has(self, name: str) -> bool:
        return name in self._members

    def each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        wanted = {}
        for name in names:
            if name not in self._members:
                raise DataError(f"{self.path}: holds no {name}")
            wanted[self._members[name]] = name
        try:
            for member, raw in self._read(wanted):
                yield wanted[member], raw
        except _DAMAGE as error:
            raise _damaged(self.path, error) from None

    def label(self, name: str) -> str:
        return f"{self.path}: {name}"

    def stamped(self, names: Sequence[str] | None = None) -> list[Path]:
        return [self.path]

    def _list(self) -> list[str]:
        raise NotImplementedError

    def _read(self, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        raise NotImplementedError


class _Zip(_Archive):
    def _list(self) -> list[str]:
        with zipfile.ZipFile(self.path) as archive:
            return [member.filename for member in archive.infolist() if not member.is_dir()]

    def _read(self, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(self.path) as archive:
            for name in wanted:
                yield name, archive.read(name)


class _Tar(_Archive):
    def _list(self) -> list[str]:
        with tarfile.open(self.path) as archive:
            return [member.name.removeprefix("./") for member in archive if member.isfile()]

    def _read(self, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        left = set(wanted)
        with tarfile.open(self.path) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isfile() and name in left:
                    stream = archive.extractfile(member)
                    left.remove(name)
                    yield name, stream.read() if stream is not None else b""
                if not left:
                    return


def open_files(path: Path) -> Files:
    """The files of a folder, .zip or .tar(.gz, .xz, .bz2). Raises `DataError` for anything else, for damaged archives
    and for archives with members outside their own folder.
    """
    if path.is_dir():
        return Files(path)
    if path.suffix == ".zip":
        return _Zip(path)
    if path.name.endswith(_ARCHIVES):
        return _Tar(path)
    raise DataError(f"{path}: neither a folder nor an archive ({', '.join(_ARCHIVES)})")


def verify_md5(paths: Iterable[Path], published: dict[str, str]) -> None:
    """Raises `DataError` for a file whose name is in `published` and whose MD5 is another."""
    for path in paths:
        expected = published.get(path.name)
        if expected is None:
            continue
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != expected:
            raise DataError(
                f"{path}: MD5 {found}, its publisher gives {expected}; fetch it again, or set scenario.verify=false "
                "if you changed it"
            )


def _safe(archive: Path, name: str) -> str:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0] == "/" or parts[0].endswith(":") or ".." in parts:
        raise DataError(f"{archive}: member '{name}' leads outside its folder; do not trust this archive")
    return name


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _damaged(path: Path, error: BaseException) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: no such file")
    return DataError(f"{path}: cannot be read ({' '.join(str(error).split())}); damaged or truncated, fetch it again")
