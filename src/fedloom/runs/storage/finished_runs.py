"""Search folders for finished runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder
from fedloom.runs.storage.versions import version_of

_OF_A_RUN = ("config.yaml", "summary.json")
_BELOW_A_RUN = ("checkpoint",)
_BELOW_A_STUDY = ("trials",)
STUDY_FILE = "study.yaml"
_OTHER = "no run in it"


@dataclass(slots=True)
class CollectedRuns:
    """Finished runs, and the folders that are left out, each with the reason."""

    results: list[RunData] = field(default_factory=list)
    left_out: list[tuple[Path, str]] = field(default_factory=list)


def search_runs(folders: Sequence[Path]) -> CollectedRuns:
    """Return all finished runs in and below `folders`, each once, in the order of their paths; they may be none.

    Left out are runs that have not finished or cannot be read, folders without runs and trials of tuning. Links to
    folders are not followed. Raises `ConfigError` for paths that are no folders.
    """
    collected, visited = CollectedRuns(), set[Path]()
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; give run folders such as runs/{'{name}'}")
        if not _search(folder, collected, visited):
            collected.left_out.append((folder, _OTHER))
    return collected


def is_run(folder: Path) -> bool:
    """Whether a folder is that of one run, finished or not."""
    return any((folder / name).exists() for name in _OF_A_RUN)


def unfinished(path: Path) -> str:
    """Return why the run in a folder gives no result."""
    folder = RunFolder(path)
    config = folder.read_config()
    if config is None:
        return "damaged: config.yaml is missing"
    if "scenario" not in config:
        return "its config.yaml is not of a run"
    last = max((row["round"] for row in folder.log.rows()), default=0)
    return f"unfinished, {last} of {config.get('rounds')} rounds"


def refuse_none(collected: CollectedRuns) -> None:
    """Raise `ConfigError`, with the reasons, if no finished run was found."""
    if collected.results:
        return
    why = "; ".join(f"{path}: {reason}" for path, reason in collected.left_out[:3])
    remainder = f"; and {len(collected.left_out) - 3} more" if len(collected.left_out) > 3 else ""
    raise ConfigError(f"no finished run there: {why}{remainder}")


def _search(folder: Path, collected: CollectedRuns, visited: set[Path]) -> bool:
    """Search a folder and those below it, once; return whether there is any run, finished or not."""
    if folder.resolve() in visited:
        return True
    visited.add(folder.resolve())
    holds_run = is_run(folder)
    try:
        below = _BELOW_A_RUN if holds_run else _BELOW_A_STUDY if (folder / STUDY_FILE).exists() else ()
        inner = sorted(path for path in folder.iterdir() if _is_searched(path, below))
    except OSError as error:
        collected.left_out.append((folder, f"cannot be read ({error.strerror})"))
        return True
    if holds_run:
        _read(folder, collected)
    without = [path for path in inner if not _search(path, collected, visited)]
    anything = holds_run or len(without) < len(inner)
    if anything and not holds_run:
        collected.left_out += [(path, _OTHER) for path in without]
    return anything


def _is_searched(path: Path, left_out: Sequence[str]) -> bool:
    hidden = path.name.startswith(".") or path.name in left_out
    return path.is_dir() and not path.is_symlink() and not hidden


def _read(folder: Path, collected: CollectedRuns) -> None:
    """Add a run folder to the runs, or to those left out with the reason."""
    try:
        result = RunData.read(folder)
        if result is not None:
            version_of(folder)  # raises for a damaged env.json, which is needed to join results
            collected.results.append(result)
        else:
            collected.left_out.append((folder, unfinished(folder)))
    except RunFolderError as error:
        collected.left_out.append((folder, f"damaged: {error}"))
