"""What image sets share that are read from the files their publishers give out."""

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
    """Where a set is looked for: `path`, or its own folder in the data folder."""
    return data_dir() / kind if path is None else path


def locate(kind: str, path: Path | None, layouts: Sequence[tuple[str, str]], publisher: str) -> Path:
    """The folder or archive that holds a set: `path` itself if it is a file, else the first of `layouts` below it.

    A layout is (folder or file below `path`, file or folder/ that must be in it); "" for `path` itself and for nothing.
    Raises `DataError` that says what is expected where, and who publishes it.
    """
    home = search_path(kind, path)
    if home.is_file():
        return home
    for place, needed in layouts:
        if has_layout(home, place, needed):
            return home / place
    expected = ", ".join(f"{place}/{needed}".strip("/") for place, needed in layouts)
    state = "no folder" if not home.is_dir() else "nothing usable in"
    raise DataError(
        f"source {kind}: {state} {home}; expected there one of {expected}; published by {publisher}; "
        "scenario.path names another place"
    )


def has_layout(home: Path, place: str, needed: str) -> bool:
    """Whether a layout of `locate` is there."""
    spot = home / place / needed
    return spot.is_dir() if needed.endswith("/") else spot.is_file()


class PublishedImages(ImageSource):
    """Base of sets with published files."""

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
        """Where the files may lie, best first; see `locate`."""
        raise TypeError(f"{type(self).__name__} defines no layouts()")

    def names_to_read(self, files: Files) -> list[str] | None:
        """The names that `read` uses; None for all."""
        return None

    def read(self, files: Files, allocate: Allocator) -> ParsedSplits:
        """Parse the published files."""
        raise TypeError(f"{type(self).__name__} defines no read()")

    def data_path(self) -> Path:
        """The folder, archive or .npz file that is read."""
        return locate(self.kind, self.path, self.layouts(), self.publisher)

    def files(self) -> Sequence[Path]:
        found = self.data_path()
        if found.is_file():
            return [found]
        files = open_files(found)
        return files.stamped_paths(self.names_to_read(files))

    def parse(self, allocate: Allocator) -> ParsedSplits:
        found = self.data_path()
        if found.suffix == ".npz":
            return self.from_npz(found, allocate)
        if self.verify:
            verify_md5(self.files() if self.checksums else [], self.checksums)
        return self.read(open_files(found), allocate)

    def from_npz(self, path: Path, allocate: Allocator) -> ParsedSplits:
        """The set from an .npz in the Keras convention."""
        return parse_npz(path, allocate, self.class_names)
