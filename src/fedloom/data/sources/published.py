"""The base class of image sets that are read from published files, and the search for these files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.cached import Allocator, ImageSource, ParsedSplits
from fedloom.data.sources.files import Files, data_dir, open_files, verify_md5
from fedloom.data.sources.npz import parse_npz
from fedloom.data.sources.source import Splits


def search_path(kind: str, path: Path | None) -> Path:
    """Return `path`, or by default the set's folder in the data folder."""
    return data_dir() / kind if path is None else path


def locate(kind: str, path: Path | None, layouts: Sequence[tuple[str, str]], publisher: str) -> Path:
    """Find the folder or archive of a set: `path` itself if it is a file, else the first of `layouts` below it.

    Args:
        kind: name of the source, and of its folder where `path` is None.
        path: the user's path, or None.
        layouts: pairs of a folder or file below `path` ("" for `path` itself), and a file or folder/ that it must
            contain ("" for none).
        publisher: who publishes the set, for the message.

    Raises `DataError` that names the expected files and the publisher.
    """
    root = search_path(kind, path)
    if root.is_file():
        return root
    for subpath, member in layouts:
        if has_layout(root, subpath, member):
            return root / subpath
    expected = ", ".join(f"{subpath}/{member}".strip("/") for subpath, member in layouts)
    problem = "no folder" if not root.is_dir() else "nothing usable in"
    raise DataError(
        f"source {kind}: {problem} {root}; expected there one of {expected}; published by {publisher}; "
        "set scenario.path if they are elsewhere"
    )


def has_layout(root: Path, subpath: str, member: str) -> bool:
    """Tell whether a layout of `locate` exists.

    Args:
        root: the folder to look below.
        subpath: a folder or file below it, "" for itself.
        member: a file, or a folder with / at its end, below `subpath`.
    """
    path = root / subpath / member
    return path.is_dir() if member.endswith("/") else path.is_file()


class PublishedImages(ImageSource):
    """Base of image sets with published files."""

    publisher: ClassVar[str] = ""
    class_names: ClassVar[tuple[str, ...]] = tuple("0123456789")
    checksums: ClassVar[dict[str, str]] = {}

    path: Path | None = Field(
        None,
        description="Folder of the published files, or the archive or .npz file itself; null searches "
        "`$FEDLOOM_DATA/<source>`.",
    )
    verify: bool = Field(
        True,
        description="Whether archives are compared with the publisher's MD5 where there is one.",
    )
    limit: int | None = Field(
        None,
        ge=1,
        description="Number of training images that are used, the first ones in the order of the files; null takes "
        "all.",
    )

    def load(self) -> Splits:
        splits = super().load()
        return splits if self.limit is None else replace(splits, train=splits.train.head(self.limit))

    def layouts(self) -> Sequence[tuple[str, str]]:
        """Return where the files may be, in order of preference; see `locate`."""
        raise TypeError(f"{type(self).__name__} defines no layouts()")

    def names_to_read(self, files: Files) -> list[str] | None:
        """Return the names of the files that `read` uses; None for all."""
        return None

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        """Parse the published files."""
        raise TypeError(f"{type(self).__name__} defines no read()")

    def data_path(self) -> Path:
        """Find the folder, archive or .npz file that is read."""
        return locate(self.kind, self.path, self.layouts(), self.publisher)

    def files(self) -> Sequence[Path]:
        path = self.data_path()
        if path.is_file():
            return [path]
        files = open_files(path)
        return files.stamped_paths(self.names_to_read(files))

    def parse(self, allocate: Allocator) -> ParsedSplits:
        path = self.data_path()
        if path.suffix == ".npz":
            return self.from_npz(path, allocate)
        if self.verify:
            verify_md5(self.files() if self.checksums else [], self.checksums)
        return self.read(open_files(path), allocate)

    def from_npz(self, path: Path, allocate: Allocator) -> ParsedSplits:
        """Parse an .npz in the Keras convention."""
        return parse_npz(path, allocate, self.class_names)
