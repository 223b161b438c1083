"""Copy finished cells of another study into this one: a table and a figure of a paper often share runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.runs.storage.data_record import read_record, refuse_mixed_data
from fedloom.runs.storage.round_folders import finished_folders, round_of
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.run_folder import RunFolder
from fedloom.runs.storage.versions import version_of
from fedloom.runs.studies.plan import Cell
from fedloom.runs.studies.study_folder import COPIES, STUDY, StudyFolder


def reusable(folder: StudyFolder, cells: Sequence[Cell], source: Path) -> list[Cell]:
    """Return those of `cells` that are finished in the study folder `source` and not begun in `folder`.

    A cell matches if its config is equal in all keys and this version of fedloom made it. Raises `ConfigError` for a
    folder without a study, `RunFolderError` for a damaged run, and for cells with other data than the runs here.
    """
    if not (source / STUDY).exists():
        raise ConfigError(f"{source}: no study in this folder; give the folder of a table, or of a study")
    chosen = [cell for cell in cells if not folder.cell(cell.folder).exists() and _is(cell, source / cell.folder)]
    existing = [path.parent for path in sorted(folder.path.glob("*/scenario.json"))]
    refuse_mixed_data((str(run), read_record(run)) for run in [*existing, *(source / cell.folder for cell in chosen)])
    return chosen


def reuse(folder: StudyFolder, cells: Sequence[Cell], source_study: Path) -> list[str]:
    """Copy the `reusable` cells of the folder `source_study`, and return their names.

    Raises as `reusable` does, and `RunFolderError` for a copy that cannot be written.
    """
    return [
        cell.name for cell in reusable(folder, cells, source_study) if _take(folder, cell, source_study / cell.folder)
    ]


def _take(folder: StudyFolder, cell: Cell, source: Path) -> bool:
    target, copy = folder.cell(cell.folder), folder.path / COPIES / cell.folder
    with folder.cell_lock(cell.folder) as locked:
        if not locked or target.exists():
            return False
        try:
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)
            copy.rename(target)
        except OSError as error:
            raise RunFolderError(f"{target}: cannot be copied from {source} ({error.strerror or error})") from None
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    return True


def _is(cell: Cell, source: Path) -> bool:
    """Whether a folder has this cell, finished, as this version makes it."""
    result = RunData.read(source) if source.is_dir() else None
    if result is None or result.numbers.get("fingerprint") != cell.config.fingerprint():
        return False
    kept = {round_of(path) for path in finished_folders(RunFolder(source).client_models)}
    if not kept.issuperset(cell.config.checkpoint.keep_clients):  # no number of the run, so the fingerprint lacks it
        return False
    return version_of(source) == __version__
