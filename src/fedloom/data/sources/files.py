"""A folder or an archive as named files. Archives are read where they are: nothing is ever unpacked to disk."""

from __future__ import annotations

import hashlib
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from fedloom.core.errors import DataError, printable
from fedloom.core.files import cache_dir, expand_home
from fedloom.data.memory import require_memory
from fedloom.data.sources.regular_files import read_regular, require_regular

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
ENCRYPTED = 1
"""The flag of encrypted members of a .zip."""
_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def data_dir() -> Path:
    """Where a source looks that is given no `path`: $FEDLOOM_DATA, else `data` in the cache folder."""
    own = os.environ.get("FEDLOOM_DATA")
    return expand_home(own) if own else cache_dir() / "data"


class Files:
    """Files of one folder, by their path relative to it ("train/cat/1.png"). Links are followed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """All names, sorted; hidden files are left out, and so are pipes and devices (see `notes`).

        Raises `DataError` for a folder that cannot be read, and for a link back to a folder around it.
        """
        return sorted(self._walk()[0])

    def notes(self) -> tuple[str, ...]:
        """One sentence on what lies here and is not listed in `names`, since it holds no data."""
        special = self._walk()[1]
        return (f"pipes or devices that are not read: {special}",) if special else ()

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Name and contents, in the order that is cheapest to read. Raises `DataError` for what cannot be read."""
        for name in names:
            yield name, read_regular(self.path / name)

    def read(self, name: str) -> bytes:
        return next(iter(self.read_each([name])))[1]

    def display_name(self, name: str) -> str:
        """The file as messages name it."""
        return printable(str(self.path / name))

    def stamped_paths(self, names: Sequence[str] | None = None) -> list[Path]:
        """The paths whose sizes and times say whether `names` (or all) have changed."""
        return [self.path / name for name in (self.names() if names is None else names)]

    def _walk(self) -> tuple[list[str], int]:
        """Names of files, and how many entries are neither files nor folders."""
        names: list[str] = []
        special = 0
        pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]  # folders, and the folders around them
        while pending:
            prefix, around = pending.pop()
            folder = self.path / prefix
            try:
                stat_of = folder.stat()
                identity = (stat_of.st_dev, stat_of.st_ino)
                if identity in around:
                    raise DataError(f"{self.display_name(prefix)}: a link back to a folder around it; remove it")
                with os.scandir(folder) as entries:
                    for entry in entries:
                        if _hidden(entry.name):
                            continue
                        if entry.is_dir():
                            pending.append((f"{prefix}{entry.name}/", (*around, identity)))
                        elif entry.is_file() or entry.is_symlink():  # a link to nothing is refused when it is read
                            names.append(f"{prefix}{entry.name}")
                        else:
                            special += 1
            except OSError as error:
                raise DataError(f"{self.display_name(prefix)}: cannot be read ({error.strerror})") from None
        return names, special


class _Archive(Files):
    """Members of an archive; a single folder around all of them is left out of their names."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        require_regular(path)
        self._unread = 0
        try:
            listed = [name for name in self._list() if not _hidden(_safe(path, name))]
        except _DAMAGE as error:
            raise _damaged(path, error) from None
        tops = {name.partition("/")[0] for name in listed}
        top = f"{tops.pop()}/" if len(tops) == 1 and all("/" in name for name in listed) else ""
        self._members = {name.removeprefix(top): name for name in listed}
        if len(self._members) < len(listed):
            twice = next(name for name, count in Counter(listed).items() if count > 1)
            raise DataError(f"{path}: holds '{printable(twice)}' twice; pack it again, with each file once")

    def names(self) -> list[str]:
        return sorted(self._members)

    def notes(self) -> tuple[str, ...]:
        return (f"links or devices in the archive that are not read: {self._unread}",) if self._unread else ()

    def has(self, name: str) -> bool:
        return name in self._members

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        wanted = {}
        for name in names:
            if name not in self._members:
                raise DataError(f"{self.path}: holds no {printable(name)}")
            wanted[self._members[name]] = name
        try:
            for member, raw in self._read(wanted):
                yield wanted[member], raw
        except _DAMAGE as error:
            raise _damaged(self.path, error) from None

    def display_name(self, name: str) -> str:
        return printable(f"{self.path}: {name}")

    def stamped_paths(self, names: Sequence[str] | None = None) -> list[Path]:
        return [self.path]

    def _list(self) -> list[str]:
        raise NotImplementedError

    def _read(self, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        raise NotImplementedError


class _Zip(_Archive):
    def _list(self) -> list[str]:
        with zipfile.ZipFile(self.path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
        if any(member.flag_bits & ENCRYPTED for member in members):
            raise DataError(f"{self.path}: is encrypted; unpack it, and give the folder")
        plain = [member for member in members if not stat.S_ISLNK(member.external_attr >> 16)]
        self._unread = len(members) - len(plain)
        return [member.filename for member in plain]

    def _read(self, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(self.path) as archive:
            for name in wanted:
                require_memory(archive.getinfo(name).file_size, self.display_name(name))
                yield name, archive.read(name)


class _Tar(_Archive):
    def _list(self) -> list[str]:
        with tarfile.open(self.path) as archive:
            members = [member for member in archive if not member.isdir()]
        plain = [member for member in members if member.isfile()]
        self._unread = len(members) - len(plain)
        return [member.name.removeprefix("./") for member in plain]

    def _read(self, wanted: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        left = set(wanted)
        with tarfile.open(self.path) as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isfile() and name in left:
                    require_memory(member.size, self.display_name(name))
                    stream = archive.extractfile(member)
                    left.remove(name)
                    yield name, stream.read() if stream is not None else b""
                if not left:
                    return


def open_files(path: Path) -> Files:
    """The files of a folder, .zip or .tar(.gz, .xz, .bz2). Raises `DataError` for anything else, for damaged and
    encrypted archives, and for archives with members outside their own folder or with two of one name.
    """
    if path.is_dir():
        return Files(path)
    if path.suffix.lower() == ".zip":
        return _Zip(path)
    if path.name.lower().endswith(_ARCHIVES):
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
        raise DataError(f"{archive}: member '{printable(name)}' leads outside its folder; do not trust this archive")
    return name


def _hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _damaged(path: Path, error: BaseException) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: no such file")
    return DataError(f"{path}: cannot be read ({' '.join(str(error).split())}); damaged or truncated, fetch it again")
