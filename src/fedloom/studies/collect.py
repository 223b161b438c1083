"""Collect finished runs from folders: of runs, of comparisons, and of anything above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.results.result import Result
from fedloom.results.versions import refuse_mixed_results, version_of
from fedloom.storage.run_folder import RunFolder

_OF_A_RUN = ("config.yaml", "summary.json")
_BELOW_A_RUN = ("checkpoint",)
_BELOW_A_STUDY = ("trials",)
_OF_A_STUDY = "study.yaml"
_OTHER = "no run in it"


@dataclass(slots=True)
class CollectedRuns:
    """Finished runs, and the folders that are left out, each with the reason."""

    results: list[Result] = field(default_factory=list)
    left_out: list[tuple[Path, str]] = field(default_factory=list)


def collect(folders: Sequence[Path], allow_mixed: bool = False) -> CollectedRuns:
    """Return all finished runs in and below `folders`, each once, in the order of their paths.

    Left out are runs that have not finished or cannot be read, folders without runs, trials of tuning and, unless
    `allow_mixed`, runs in a study's folder that are not among its cells. Links to folders are not followed. Raises
    `ConfigError` for paths that are no folders, if no run remains, and, unless `allow_mixed`, for runs of different
    versions of fedloom.
    """
    collected, visited = CollectedRuns(), set[Path]()
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; give run folders such as runs/{'{name}'}")
        if not _search(folder, collected, visited):
            collected.left_out.append((folder, _OTHER))
    if not allow_mixed:
        _as_cells(collected)
        refuse_mixed_results(collected.results)
    if not collected.results:
        why = "; ".join(f"{path}: {reason}" for path, reason in collected.left_out[:3])
        remainder = f"; and {len(collected.left_out) - 3} more" if len(collected.left_out) > 3 else ""
        raise ConfigError(f"no finished run there: {why}{remainder}")
    return collected


def studies_of(results: Sequence[Result]) -> list[Path]:
    """Return the folders of the studies that runs belong to, each once."""
    folders = dict.fromkeys(result.folder.parent for result in results if result.folder is not None)
    return [folder for folder in folders if (folder / _OF_A_STUDY).exists()]


def _search(folder: Path, collected: CollectedRuns, visited: set[Path]) -> bool:
    """Search a folder and those below it, once; return whether there is any run, finished or not."""
    if folder.resolve() in visited:
        return True
    visited.add(folder.resolve())
    is_run = any((folder / name).exists() for name in _OF_A_RUN)
    try:
        below = _BELOW_A_RUN if is_run else _BELOW_A_STUDY if (folder / _OF_A_STUDY).exists() else ()
        inner = sorted(path for path in folder.iterdir() if _is_searched(path, below))
    except OSError as error:
        collected.left_out.append((folder, f"cannot be read ({error.strerror})"))
        return True
    if is_run:
        _read(folder, collected)
    without = [path for path in inner if not _search(path, collected, visited)]
    anything = is_run or len(without) < len(inner)
    if anything and not is_run:
        collected.left_out += [(path, _OTHER) for path in without]
    return anything


def _is_searched(path: Path, left_out: Sequence[str]) -> bool:
    hidden = path.name.startswith(".") or path.name in left_out
    return path.is_dir() and not path.is_symlink() and not hidden


def _as_cells(collected: CollectedRuns) -> None:
    """Order the runs in a study's folder as its cells, with its names; leave out those that are no cells of it."""
    studies = studies_of(collected.results)
    if not studies:
        return
    from fedloom.studies.outcome import rows_of  # imports torch

    rows_by_study = {folder: rows_of(folder) or {} for folder in studies}
    results_by_study: dict[Path | None, list[Result]] = {}
    for result in collected.results:
        folder = None if result.folder is None else result.folder.parent
        rows = None if folder is None else rows_by_study.get(folder)
        row = None if rows is None else rows.get(result.numbers.get("fingerprint", ""))
        if rows is None or row is not None:
            results_by_study.setdefault(folder, []).append(replace(result, cell=row))
        elif result.folder is not None:
            collected.left_out.append((result.folder, "no cell of its study has this config; --allow-mixed joins it"))
    for folder, rows in rows_by_study.items():
        at = {fingerprint: position for position, fingerprint in enumerate(rows)}
        results_by_study.get(folder, []).sort(key=lambda result: at[result.numbers["fingerprint"]])
    collected.results[:] = [result for results in results_by_study.values() for result in results]


def _read(folder: Path, collected: CollectedRuns) -> None:
    """Add a run folder to the runs, or to those left out with the reason."""
    try:
        result = Result.read(folder)
        if result is not None:
            version_of(folder)  # raises for a damaged env.json, which is needed to join results
            collected.results.append(result)
        else:
            collected.left_out.append((folder, _unfinished(RunFolder(folder))))
    except RunFolderError as error:
        collected.left_out.append((folder, f"damaged: {error}"))


def _unfinished(folder: RunFolder) -> str:
    config = folder.read_config()
    if config is None:
        return "damaged: config.yaml is missing"
    if "scenario" not in config:
        return "its config.yaml is not of a run"
    last = max((row["round"] for row in folder.log.rows()), default=0)
    return f"unfinished, {last} of {config.get('rounds')} rounds"
