"""Collect finished runs from folders: of runs, of comparisons, and of anything above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fedloom.runs.storage.finished_runs import STUDY_FILE, CollectedRuns, refuse_none, search_runs
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.versions import refuse_mixed_results


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


def studies_of(results: Sequence[RunData]) -> list[Path]:
    """Return the folders of the studies that runs belong to, each once."""
    folders = dict.fromkeys(result.folder.parent for result in results if result.folder is not None)
    return [folder for folder in folders if (folder / STUDY_FILE).exists()]


def _as_cells(collected: CollectedRuns) -> None:
    """Order the runs in a study's folder as its cells, with its names; leave out those that are no cells of it.

    A run of several cells, whose configs are equal, is there once for each of their rows.
    """
    studies = studies_of(collected.results)
    if not studies:
        return
    from fedloom.runs.studies.outcome import rows_of  # imports torch

    pairs_by_study = {folder: rows_of(folder) or [] for folder in studies}
    rows_by_run: dict[tuple[Path | None, str], list[tuple[str, str]]] = {}
    for study, pairs in pairs_by_study.items():
        for fingerprint, row in pairs:
            rows_by_run.setdefault((study, fingerprint), []).append(row)
    results_by_study: dict[Path | None, list[RunData]] = {}
    for result in collected.results:
        folder = None if result.folder is None else result.folder.parent
        if folder not in pairs_by_study:
            results_by_study.setdefault(folder, []).append(result)
            continue
        rows = rows_by_run.get((folder, _fingerprint(result)), [])
        results_by_study.setdefault(folder, []).extend(replace(result, cell=row) for row in rows)
        if not rows and result.folder is not None:
            collected.left_out.append((result.folder, "no cell of its study has this config; --allow-mixed joins it"))
    for folder, pairs in pairs_by_study.items():
        at = {pair: position for position, pair in enumerate(pairs)}
        results_by_study.get(folder, []).sort(key=lambda result: at[_fingerprint(result), result.cell or ("", "")])
    collected.results[:] = [result for results in results_by_study.values() for result in results]


def _fingerprint(result: RunData) -> str:
    return str(result.numbers.get("fingerprint", ""))
