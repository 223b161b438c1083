"""Marker of fedloom's folders: a small file that is written first. fedloom touches no folder without it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from fedloom._version import __version__
from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text, parse_json, read_file, write_atomic

MARKER, LOCK = ".fedloom", ".lock"
Kind = Literal["run", "comparison", "study"]
_FILES_OF_A_RUN = ("config.yaml", "scenario.json", "env.json")  # of run folders that versions without a marker left


def claim(path: Path, kind: Kind) -> None:
    """Mark a folder as that of a run, a comparison or a study. Raises `RunFolderError` as `check`."""
    check(path, kind)
    if not (path / MARKER).exists():
        write_atomic(path / MARKER, json_text({"fedloom": __version__, "folder": kind}) + "\n")


@contextlib.contextmanager
def creating(path: Path, kind: Kind) -> Iterator[None]:
    """Create a folder, to be claimed within it. Raises `RunFolderError` as `check`, and if it cannot be written."""
    try:
        check(path, kind)
        path.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be used as the folder of a {kind} ({error.strerror})") from None


def check(path: Path, kind: Kind) -> None:
    """Raises `RunFolderError` for a file, and for a folder that is neither absent, empty nor marked as of this kind."""
    for parent in (path, *path.parents):
        if parent.is_file():
            raise RunFolderError(f"{parent} is a file, not a folder; choose another place with --out")
    if not path.is_dir() or not _names(path):
        return
    marked_kind = _kind(path)
    if marked_kind is None:
        raise RunFolderError(
            f"{path} holds files that fedloom did not write; choose another folder, or an empty one, with --out"
        )
    if marked_kind != kind:
        raise RunFolderError(f"{path} is the folder of a {marked_kind}, not of a {kind}; choose another one with --out")


def refuse_links(paths: Iterable[Path]) -> None:
    """Raises `RunFolderError` for a path that is a link: writing or deleting through it would reach other files than
    those of the folder, which may come from somebody else."""
    for path in paths:
        if path.is_symlink():
            raise RunFolderError(
                f"{path}: a link, through which fedloom neither writes nor deletes; put what it points to here, or "
                "choose another folder with --out"
            )


def remove_if_empty(path: Path) -> None:
    """Remove a folder in which nothing was written; a link to it stays. Another process may write there meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        if _names(path) - {MARKER}:
            return
        for name in (MARKER, LOCK):
            (path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # a link, or no longer empty
            path.rmdir()


def _names(path: Path) -> set[str]:
    """Return the names in a folder, without the lock, and without the marker while it is being written."""
    return {entry.name for entry in path.iterdir() if entry.name != LOCK and not entry.name.startswith(f".{MARKER}.")}


def folder_kind(path: Path) -> str | None:
    """The kind of folder that the marker of `path` names; None without a marker, and for one that cannot be read."""
    try:
        content = parse_json(read_file(path / MARKER))
    except (OSError, ValueError):
        return None
    return str(content["folder"]) if isinstance(content, dict) and "folder" in content else None


def _kind(path: Path) -> str | None:
    return folder_kind(path) if os.path.lexists(path / MARKER) else _kind_without_marker(path)


def _kind_without_marker(path: Path) -> Kind | None:
    """Return the kind of a folder without a marker: a run, or a comparison, which holds folders of runs."""
    if all((path / name).is_file() for name in _FILES_OF_A_RUN):
        return "run"
    inside = (entry for entry in path.iterdir() if entry.is_dir())
    return "comparison" if any(_kind(entry) == "run" for entry in inside) else None
