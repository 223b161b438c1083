"""The outcome of the cells of a study, as its folder shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedloom.core.errors import RunFolderError
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.storage.versions import refuse_mixed_results
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.study_folder import StudyFolder, read
from fedloom.runs.studies.tuning import Choices


@dataclass(slots=True)
class Outcome:
    """Outcome of cells, by name.

    Attributes:
        done: run folders of those that have finished.
        failed: first line of the error of those that failed.
        remaining: names of the others.
        results: results by run folder.
        cell_results: the results of the cells that have finished, each with its names; cells with equal configs share a
            run, and each has its result.
    """

    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remaining: list[str] = field(default_factory=list)
    results: dict[str, RunData] = field(default_factory=dict, repr=False)
    cell_results: list[RunData] = field(default_factory=list, repr=False)


def outcome(study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell]) -> Outcome:
    """Return the outcome of cells so far, as their folders show it.

    Args:
        study: the study, of which tuned options are read.
        study_folder: the folder with its runs.
        cells: the cells to look at.
    """
    outcome_so_far, choices = Outcome(), Choices(study, study_folder)
    for cell in cells:
        tuned, error = choices.of(cell)
        if tuned is not None:
            error = _gather(study_folder, tuned, outcome_so_far.results)
        if tuned is not None and tuned.folder in outcome_so_far.results:
            if cell.name not in outcome_so_far.done:
                outcome_so_far.cell_results.append(replace(outcome_so_far.results[tuned.folder], cell=cell.row))
            outcome_so_far.done[cell.name] = tuned.folder
        elif error:
            outcome_so_far.failed[cell.name] = error.partition("\n")[0]
        else:
            outcome_so_far.remaining.append(cell.name)
    return outcome_so_far


def _gather(study_folder: StudyFolder, cell: Cell, results: dict[str, RunData]) -> str | None:
    """Add the result of a finished run to `results`, once; return the error if its files are damaged."""
    if cell.folder in results:
        return None
    if not study_folder.finished(cell.folder):
        return study_folder.error(cell.folder)
    try:
        results[cell.folder] = replace(study_folder.result(cell.folder, cell.config), cell=cell.row)
    except RunFolderError as damage:
        return str(damage)
    return None


def done_of(study: StudyPlan, ended: Outcome, allow_mixed: bool = False) -> dict[tuple[str, str], list[RunData]]:
    """Return the results of finished cells by setting and row; other listed values share an entry.

    Args:
        study: the study.
        ended: outcome of the cells of `study`.

    Raises `ConfigError` for results of different versions of fedloom, unless `allow_mixed`.
    """
    if not allow_mixed:
        refuse_mixed_results(ended.results.values())
    results_by_row: dict[tuple[str, str], list[RunData]] = {}
    for cell in study.cells:
        if cell.name in ended.done:
            results_by_row.setdefault((cell.setting, cell.method), []).append(ended.results[ended.done[cell.name]])
    return results_by_row


def failed_of(study: StudyPlan, ended: Outcome) -> dict[tuple[str, str], dict[int, str]]:
    """Return the errors of failed cells, by setting and row as `done_of`, then by seed."""
    errors_by_row: dict[tuple[str, str], dict[int, str]] = {}
    for cell in study.cells:
        if cell.name in ended.failed:
            errors_by_row.setdefault((cell.setting, cell.method), {})[cell.config.seed] = ended.failed[cell.name]
    return errors_by_row


def rows_of(folder: Path) -> list[tuple[str, tuple[str, str]]] | None:
    """Return config fingerprint, and setting and row, of a study's cells in their order, each pair once; None if the
    folder holds no study.

    Cells with equal configs share a fingerprint, and each of their rows shows its run.

    Args:
        folder: the folder of the study.
    """
    study = read(folder)
    if study is None:
        return None
    choices = Choices(study, StudyFolder(folder))
    pairs: dict[tuple[str, tuple[str, str]], None] = {}
    for cell in study.cells:
        tuned, _ = choices.of(cell)
        if tuned is not None:
            pairs[tuned.config.fingerprint(), cell.row] = None
    return list(pairs)
