"""Collect finished runs from folders: of runs, of comparisons, and of anything above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedloom.results.finished_runs import STUDY_FILE, CollectedRuns, refuse_none, search_runs
from fedloom.results.result import Result
from fedloom.results.versions import refuse_mixed_results


def collect(folders: Sequence[Path], allow_mixed: bool = False) -> CollectedRuns:
    """Return all finished runs in and below `folders`, each once, in the order of their paths.

    Left out are runs that have not finished or cannot be read, folders without runs, trials of tuning and, unless
    `allow_mixed`, runs in a study's folder that are not among its cells. Links to folders are not followed. Raises
    `ConfigError` for paths that are no folders, if no run remains, and, unless `allow_mixed`, for runs of different
    versions of fedloom.
    """
    collected = search_runs(folders)
    if not allow_mixed:
        _as_cells(collected)
        refuse_mixed_results(collected.results)
    refuse_none(collected)
    return collected


def studies_of(results: Sequence[Result]) -> list[Path]:
    """Return the folders of the studies that runs belong to, each once."""
    folders = dict.fromkeys(result.folder.parent for result in results if result.folder is not None)
    return [folder for folder in folders if (folder / STUDY_FILE).exists()]


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
