"""Folders `round-000012`, one for each stored round, that are complete or absent."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedloom.core.files import open_to_read


def round_folder(folder: Path, round_: int) -> Path:
    """The folder of one round."""
    return folder / f"round-{round_:06d}"


def round_of(path: Path) -> int:
    """The round of a folder of that name."""
    return int(path.name.removeprefix("round-"))


def finished_folders(folder: Path) -> list[Path]:
    """The folders of all stored rounds, ascending."""
    paths = folder.glob("round-[0-9]*") if folder.is_dir() else []
    return sorted((path for path in paths if path.name.removeprefix("round-").isdecimal()), key=round_of)


def delete_round_folders(folder: Path) -> None:
    """Delete all rounds, and what an interrupted write left; then the folder, unless it holds something else."""
    for path in [*folder.glob("round-*"), *folder.glob(".round-*.partial")]:
        shutil.rmtree(path, ignore_errors=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Give a new folder to write into; it takes the place of `target` when the block ends without an error.

    Raises `OSError` (e.g. a full disk); `target` is then as it was, or gone where the disk fails between its deletion
    and the renaming.
    """
    partial = target.parent / f".{target.name}.partial"
    for abandoned in target.parent.glob(".round-*.partial"):
        shutil.rmtree(abandoned, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        _sync_folder(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    _sync_folder(target.parent)


def file_digest(path: Path) -> str:
    """The sha256 of a file. Raises `OSError` if it cannot be read."""
    with open_to_read(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
