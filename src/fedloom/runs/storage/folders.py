"""The folders that fedloom writes, and errors of a full disk or memory. A marker, a small file, is written first, and
fedloom touches no folder without it. A folder `round-000012` is complete or absent."""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from fedloom._version import __version__
from fedloom.core.errors import ClientError, RunFolderError
from fedloom.core.files import json_text, open_to_read, parse_json, read_file, write_atomic

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
            raise RunFolderError(f"{parent} is a file, not a folder; choose another place with out=...")
    if not path.is_dir() or not _names(path):
        return
    marked_kind = _kind(path)
    if marked_kind is None:
        remedy = "choose another folder, or an empty one, with out=..."
        raise RunFolderError(f"{path} holds files that fedloom did not write; {remedy}")
    if marked_kind != kind:
        raise RunFolderError(
            f"{path} is the folder of a {marked_kind}, not of a {kind}; choose another one with out=..."
        )


def refuse_links(paths: Iterable[Path]) -> None:
    """Raise `RunFolderError` for a path that is a link."""
    # a shared folder may contain links, and writing or deleting through one would reach files outside the folder
    for path in paths:
        if path.is_symlink():
            remedy = "move its target here, or choose another folder with out=..."
            raise RunFolderError(f"{path}: a link, through which fedloom neither writes nor deletes; {remedy}")


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
    """Return the kind of a folder; without a marker a run, or a comparison, which holds folders of runs."""
    if os.path.lexists(path / MARKER):
        return folder_kind(path)
    if all((path / name).is_file() for name in _FILES_OF_A_RUN):
        return "run"
    inside = (entry for entry in path.iterdir() if entry.is_dir())
    return "comparison" if any(_kind(entry) == "run" for entry in inside) else None


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
    """Give a new folder to write into; it takes the place of `target` when the block ends without an error. Else
    `target` stays as it was, or is gone where the disk fails between its deletion and the renaming."""
    partial = target.parent / f".{target.name}.partial"
    # Left by a run that was killed while it wrote.
    for abandoned in target.parent.glob(".round-*.partial"):
        shutil.rmtree(abandoned, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        # the content must be on the disk before the name that says it is complete
        _sync_folder(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    # A rename changes the parent folder, which has to reach the disk as well.
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


_DISK = {
    errno.ENOSPC: "no space left on the device",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than is allowed here (ulimit -f)",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)  # whoever writes next meets them, too
_MEMORY = ("can't allocate memory", "CUDA out of memory")  # in what torch raises


@contextlib.contextmanager
def explain_shortage(path: Path, resumes: bool = False) -> Iterator[None]:
    """Within it, a full disk and a lack of memory are `RunFolderError`s that say what to do. resumes: whether the same
    command continues the run."""
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
        again = "repeat the command" if resumes else "continue with existing='resume'"
        raise RunFolderError(f"{path}: {problem} and {again}") from error


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
