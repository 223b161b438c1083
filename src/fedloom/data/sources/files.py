"""Named files of a folder or an archive. Archives are never unpacked to disk."""

import hashlib
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from fedloom.core.errors import DataError, printable
from fedloom.core.files import cache_dir, expand_home, read_file
from fedloom.data.dataset import require_memory


def require_regular(path: Path) -> None:
    """Raise `DataError` for a pipe or a device. Missing files pass: their reader reports them."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DataError(f"{printable(str(path))}: is a pipe or a device; need a file")


def require_file(path: Path, need: str) -> None:
    """Raise `DataError` unless `path` is a regular file. need: description of the expected content, for the message."""
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


_PACKED = {b"\x1f\x8b": "gzip-compressed", b"PK\x03\x04": "a zip archive", b"BZh": "bzip2-compressed"}


def utf8(raw: bytes, label: str) -> str:
    """Return the text in `raw`, without a byte order mark. Raises `DataError` for packed files and NUL bytes, and with
    the place of the first byte that is not UTF-8."""
    packed = next((kind for magic, kind in _PACKED.items() if raw.startswith(magic)), None)
    if packed is not None:
        raise DataError(f"{label}: is {packed}; unpack it first")
    if b"\x00" in raw:
        raise DataError(f"{label}: byte {raw.index(0)} is NUL: no text, or UTF-16; convert the file to UTF-8")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} (0x{raw[error.start]:02x})"
        raise DataError(f"{label}: {byte} is not UTF-8; convert the file to UTF-8") from None


def package_folder(kind: str, package: str, name: str, content: str) -> Path:
    """Return the folder of an installed package without importing it. Raises `DataError`, for the source `kind`, with
    the package's name and content, if it is not installed."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"source {kind}: {name} is not installed; its package holds the {content}")
    return Path(spec.submodule_search_locations[0])


_DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)
_READ_ERRORS = (OSError, ValueError, RuntimeError, *_DAMAGED)
ENCRYPTED = 1  # flag bit of encrypted members of a .zip
_SHOWN_FOLDERS = 5  # in a note
_ARCHIVE_SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


def data_dir() -> Path:
    """Return the folder where sources without `path` look: $FEDLOOM_DATA, else `data` in the cache folder."""
    configured = os.environ.get("FEDLOOM_DATA")
    return expand_home(configured) if configured else cache_dir() / "data"


class Files:
    """Files of one folder, by their path relative to it ("train/cat/1.png"). Links are followed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """List all names, sorted, without hidden files, pipes and devices. Raises `DataError` for a folder that cannot
        be read, and for a link back to a folder around it."""
        return sorted(self._walk()[0])

    def notes(self) -> tuple[str, ...]:
        """Return sentences that count what `names` does not list: pipes and devices, and empty folders."""
        _, empty, skipped = self._walk()
        pipes = (f"pipes or devices that are not read: {skipped}",) if skipped else ()
        return pipes + _empty_folders_note(empty)

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Yield name and contents, in the fastest order. Raises `DataError` for files that cannot be read."""
        for name in names:
            yield name, read_regular(self.path / name)

    def read(self, name: str) -> bytes:
        """Return the contents of one file. Raises `DataError` if it cannot be read."""
        return next(iter(self.read_each([name])))[1]

    def lines(self, name: str) -> list[str]:
        """Return the lines of a text. Raises `DataError` if it cannot be read or is not UTF-8."""
        return utf8(self.read(name), self.display_name(name)).splitlines()

    def display_name(self, name: str) -> str:
        return printable(str(self.path / name))

    def stamped_paths(self, names: Sequence[str] | None = None) -> list[Path]:
        """Return the paths whose sizes and times show whether `names` (None for all) have changed."""
        return [self.path / name for name in (self.names() if names is None else names)]

    def _walk(self) -> tuple[list[str], list[str], int]:
        """Return names of files, names of empty folders, and the number of entries that are neither."""
        names: list[str] = []
        empty: list[str] = []
        skipped = 0
        pending: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]  # folders, and ids of the folders above
        while pending:
            prefix, ancestors = pending.pop()
            folder = self.path / prefix
            try:
                status = folder.stat()
                identity = (status.st_dev, status.st_ino)
                if identity in ancestors:
                    raise DataError(f"{self.display_name(prefix)}: a link back to a folder around it; remove it")
                with os.scandir(folder) as entries:
                    shown = [entry for entry in entries if not _is_hidden(entry.name)]
                if not shown:
                    empty.append(prefix.rstrip("/"))
                for entry in shown:
                    if entry.is_dir():
                        pending.append((f"{prefix}{entry.name}/", (*ancestors, identity)))
                    elif entry.is_file() or entry.is_symlink():  # a broken link is refused when it is read
                        names.append(f"{prefix}{entry.name}")
                    else:
                        skipped += 1
            except OSError as error:
                raise DataError(f"{self.display_name(prefix)}: cannot be read ({error.strerror})") from None
        return names, empty, skipped


class _Archive(Files):
    """Members of an archive. A single folder around all of them is left out of their names."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        require_regular(path)  # opening a pipe would wait for a writer
        self._skipped = 0
        self._folders: list[str] = []
        try:
            stored_names = [name for name in self._list() if not _is_hidden(_refuse_outside(path, name))]
        except _READ_ERRORS as error:
            raise _read_error(path, error) from None
        top_folders = {name.partition("/")[0] for name in stored_names}
        folder = f"{top_folders.pop()}/" if len(top_folders) == 1 and all("/" in name for name in stored_names) else ""
        self._members = {name.removeprefix(folder): name for name in stored_names}
        if len(self._members) < len(stored_names):
            repeated = next(name for name, count in Counter(stored_names).items() if count > 1)
            raise DataError(f"{path}: holds '{printable(repeated)}' twice; pack it again, with each file once")

    def names(self) -> list[str]:
        return sorted(self._members)

    def notes(self) -> tuple[str, ...]:
        links = (f"links or devices in the archive that are not read: {self._skipped}",) if self._skipped else ()
        holders = {
            str(parent) for name in (*self._members.values(), *self._folders) for parent in PurePosixPath(name).parents
        }
        return links + _empty_folders_note([name for name in self._folders if name not in holders])

    def has(self, name: str) -> bool:
        return name in self._members

    def read_each(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        names_by_member = {}
        for name in names:
            if name not in self._members:
                raise DataError(f"{self.path}: holds no {printable(name)}")
            names_by_member[self._members[name]] = name
        try:
            for member, raw in self._read(names_by_member):
                yield names_by_member[member], raw
        except _READ_ERRORS as error:
            raise _read_error(self.path, error) from None

    def display_name(self, name: str) -> str:
        return printable(f"{self.path}: {name}")

    def stamped_paths(self, names: Sequence[str] | None = None) -> list[Path]:
        return [self.path]

    def _list(self) -> list[str]:
        raise NotImplementedError

    def _read(self, members: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        raise NotImplementedError


class _Zip(_Archive):
    def _list(self) -> list[str]:
        with zipfile.ZipFile(self.path) as archive:
            stored = archive.infolist()
        members = [member for member in stored if not member.is_dir()]
        self._folders = [member.filename.rstrip("/") for member in stored if member.is_dir()]
        if any(member.flag_bits & ENCRYPTED for member in members):
            raise DataError(f"{self.path}: is encrypted; unpack it, and give the folder")
        # A zip made on Unix has the file's mode in the upper half of these attributes.
        plain = [member for member in members if not stat.S_ISLNK(member.external_attr >> 16)]
        self._skipped = len(members) - len(plain)
        return [member.filename for member in plain]

    def _read(self, members: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        with zipfile.ZipFile(self.path) as archive:
            for name in members:
                require_memory(archive.getinfo(name).file_size, self.display_name(name))
                yield name, archive.read(name)


class _Tar(_Archive):
    def _list(self) -> list[str]:
        with tarfile.open(self.path) as archive:
            stored = list(archive)
        members = [member for member in stored if not member.isdir()]
        self._folders = [member.name.removeprefix("./") for member in stored if member.isdir()]
        plain = [member for member in members if member.isfile()]
        self._skipped = len(members) - len(plain)
        return [member.name.removeprefix("./") for member in plain]

    def _read(self, members: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        remaining = set(members)
        with tarfile.open(self.path) as archive:
            # In the archive's order: each step back would unpack a compressed one from its start again.
            for member in archive:
                name = member.name.removeprefix("./")
                if member.isfile() and name in remaining:
                    require_memory(member.size, self.display_name(name))
                    stream = archive.extractfile(member)
                    remaining.remove(name)
                    yield name, stream.read() if stream is not None else b""
                if not remaining:
                    return


def open_files(path: Path) -> Files:
    """Open a folder, .zip or .tar(.gz, .xz, .bz2). Raises `DataError` for other files, for damaged and encrypted
    archives, and for archives with members that lead outside their folder or share a name."""
    if path.is_dir():
        return Files(path)
    if path.suffix.lower() == ".zip":
        return _Zip(path)
    if path.name.lower().endswith(_ARCHIVE_SUFFIXES):
        return _Tar(path)
    raise DataError(f"{path}: neither a folder nor an archive ({', '.join(_ARCHIVE_SUFFIXES)})")


def verify_md5(paths: Iterable[Path], published: dict[str, str]) -> None:
    """Raise `DataError` for a file whose MD5 differs from that in `published`, which maps file names to MD5s."""
    for path in paths:
        expected = published.get(path.name)
        if expected is None:
            continue
        with path.open("rb") as stream:
            # Builds of Python for FIPS refuse MD5 that is not declared as `usedforsecurity=False`.
            digest = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if digest != expected:
            advice = "fetch it again, or set scenario.verify=false if you changed it"
            raise DataError(f"{path}: MD5 {digest}, its publisher gives {expected}; {advice}")


def _refuse_outside(archive: Path, name: str) -> str:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if not parts or parts[0] == "/" or parts[0].endswith(":") or ".." in parts:
        raise DataError(f"{archive}: member '{printable(name)}' leads outside its folder; do not trust this archive")
    return name


def _empty_folders_note(names: Sequence[str]) -> tuple[str, ...]:
    listed = sorted(name for name in names if not _is_hidden(name))
    shown = ", ".join(printable(name) for name in listed[:_SHOWN_FOLDERS])
    more = f", and {len(listed) - _SHOWN_FOLDERS} more" if len(listed) > _SHOWN_FOLDERS else ""
    return (f"folders without a file: {len(listed)} ({shown}{more})",) if listed else ()


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in name.split("/"))


def _read_error(path: Path, error: BaseException) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: no such file")
    return DataError(f"{path}: cannot be read ({' '.join(str(error).split())}); damaged or truncated, fetch it again")


def search_path(kind: str, path: Path | None) -> Path:
    """Return `path`, or by default the set's folder in the data folder."""
    return data_dir() / kind if path is None else path


def locate(kind: str, path: Path | None, layouts: Sequence[tuple[str, str]], publisher: str) -> Path:
    """Find the folder or archive of the set `kind`: `path` itself if it is a file, else the first of `layouts` (see
    `has_layout`) below it or the data folder. Raises `DataError` that names the expected files and the publisher."""
    root = search_path(kind, path)
    if root.is_file():
        return root
    for subpath, member in layouts:
        if has_layout(root, subpath, member):
            return root / subpath
    expected = ", ".join(f"{subpath}/{member}".strip("/") for subpath, member in layouts)
    problem = "no folder" if not root.is_dir() else "nothing usable in"
    detail = f"published by {publisher}; set scenario.path if they are elsewhere"
    raise DataError(f"source {kind}: {problem} {root}; expected there one of {expected}; {detail}")


def has_layout(root: Path, subpath: str, member: str) -> bool:
    """Tell whether `member` (a file, or a folder with / at its end; "" for none) exists below `subpath` of root."""
    path = root / subpath / member
    return path.is_dir() if member.endswith("/") else path.is_file()
