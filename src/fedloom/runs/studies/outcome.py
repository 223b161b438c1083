"""Finished cells of a study and finished runs of any folders, collected, or copied into another study."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedloom._version import __version__
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.text import lists_by_key
from fedloom.runs.storage import finished_runs
from fedloom.runs.storage.data_record import read_record, refuse_mixed_data
from fedloom.runs.storage.folders import finished_folders, round_of
from fedloom.runs.storage.run_data import RunData, evaluated
from fedloom.runs.storage.run_folder import RunFolder
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.study_folder import COPIES, STUDY, StudyFolder, read
from fedloom.runs.studies.tuning import Choices


@dataclass(slots=True)
class Outcome:
    """Outcome of cells, by name: the run folders of those `done`, the first line of the error of those `failed`, the
    `remaining` ones, and those that are `spared`, because their row is decided. `results` are by run folder;
    `cell_results` those of the finished cells, each with its names, also where equal configs share a run."""

    done: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remaining: list[str] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    results: dict[str, RunData] = field(default_factory=dict, repr=False)
    cell_results: list[RunData] = field(default_factory=list, repr=False)


def outcome(study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell]) -> Outcome:
    """Return the outcome of the cells of `study` so far, as their run folders in `study_folder` show it."""
    outcome_so_far, choices, plans = Outcome(), Choices(study, study_folder), study_folder.plans()
    spared = study_folder.spared(study)
    for cell in cells:
        tuned, error = choices.of(cell)
        if tuned is not None:
            error = _gather(study_folder, tuned, outcome_so_far.results)
        if tuned is not None and tuned.folder in outcome_so_far.results:
            if cell.name not in outcome_so_far.done:
                outcome_so_far.cell_results.append(
                    replace(outcome_so_far.results[tuned.folder], cell=cell.row, plan=plans[cell.group])
                )
            outcome_so_far.done[cell.name] = tuned.folder
        elif error:
            outcome_so_far.failed[cell.name] = error.partition("\n")[0]
        elif cell.name in spared:
            outcome_so_far.spared.append(cell.name)
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
    """Return the results of finished cells of a `study` that `ended` has, by setting and method; seeds and other listed
    values share an entry. Raises `ConfigError` if they are of different versions of fedloom, unless `allow_mixed`."""
    if not allow_mixed:
        finished_runs.refuse_mixed_results(ended.results.values())
    done = ((cell, ended.done[cell.name]) for cell in study.cells if cell.name in ended.done)
    return lists_by_key(((cell.setting, cell.method), ended.results[folder]) for cell, folder in done)


def failed_of(study: StudyPlan, ended: Outcome) -> dict[tuple[str, str], dict[int, str]]:
    """Return the errors of failed cells, by setting and row as `done_of`, then by seed."""
    errors_by_row: dict[tuple[str, str], dict[int, str]] = {}
    for cell in study.cells:
        if cell.name in ended.failed:
            errors_by_row.setdefault((cell.setting, cell.method), {})[cell.config.seed] = ended.failed[cell.name]
    return errors_by_row


def collect(folders: Sequence[Path], allow_mixed: bool = False, evaluation: str = "") -> finished_runs.CollectedRuns:
    """Return all finished runs in and below `folders`, each once, in the order of their paths.

    Left out are runs that have not finished or cannot be read, folders without runs, trials of tuning and, unless
    `allow_mixed`, runs in a study's folder that are not among its cells. Links to folders are not followed. Raises
    `ConfigError` for paths that are no folders, if no run remains, and, unless `allow_mixed`, for runs of different
    versions of fedloom. evaluation: the name of one, whose tests replace those of the training."""
    collected = finished_runs.search_runs(folders)
    if not allow_mixed:
        _as_cells(collected)
        finished_runs.refuse_mixed_results(collected.results)
    finished_runs.refuse_none(collected)
    if evaluation:
        collected.results, without = evaluated(collected.results, evaluation)
        collected.left_out += without
    return collected


def studies_of(results: Sequence[RunData]) -> list[Path]:
    """Return the folders of the studies that runs belong to, each once."""
    folders = dict.fromkeys(result.folder.parent for result in results if result.folder is not None)
    return [folder for folder in folders if (folder / finished_runs.STUDY_FILE).exists()]


def _as_cells(collected: finished_runs.CollectedRuns) -> None:
    """Order a study's runs as its cells, with their names, each run once for each cell; leave out those of no cell."""
    by_folder = lists_by_key((run.folder and run.folder.parent, run) for run in collected.results)
    collected.results.clear()
    for folder, results in by_folder.items():
        study = None if folder is None else read(folder)
        if folder is None or study is None:
            collected.results += results
            continue
        by_fingerprint = lists_by_key((str(run.numbers.get("fingerprint", "")), run) for run in results)
        study_folder = StudyFolder(folder)
        choices, plans = Choices(study, study_folder), study_folder.plans()
        tuned = ((cell, choices.of(cell)[0]) for cell in study.cells)
        pairs = {(cell.row, chosen.config.fingerprint()): cell.group for cell, chosen in tuned if chosen is not None}
        for (row, fingerprint), group in pairs.items():
            of_row = by_fingerprint.get(fingerprint, [])
            collected.results += [replace(run, cell=row, plan=plans[group]) for run in of_row]
        why = "no cell of its study has this config; --allow-mixed joins it"
        planned = {fingerprint for _, fingerprint in pairs}
        strays = [run for fingerprint, of in by_fingerprint.items() if fingerprint not in planned for run in of]
        collected.left_out += [(stray.folder, why) for stray in strays if stray.folder is not None]


def reusable(folder: StudyFolder, cells: Sequence[Cell], source: Path) -> list[Cell]:
    """Return those of `cells` that are finished in the study folder `source` and not begun in `folder`.

    A cell matches if its config is equal in all keys and this version of fedloom made it. Raises `ConfigError` for a
    folder without a study, `RunFolderError` for a damaged run, `OtherDataError` for data other than here."""
    if not (source / STUDY).exists():
        raise ConfigError(f"{source}: no study in this folder; give the folder of a table, or of a study")
    chosen = [cell for cell in cells if not folder.cell(cell.folder).exists() and _is(cell, source / cell.folder)]
    existing = [path.parent for path in sorted(folder.path.glob("*/scenario.json"))]
    refuse_mixed_data((str(run), read_record(run)) for run in [*existing, *(source / cell.folder for cell in chosen)])
    return chosen


def reuse(folder: StudyFolder, cells: Sequence[Cell], source_study: Path) -> list[str]:
    """Copy the `reusable` cells of `source_study`; return their names. Raises as `reusable`, and `RunFolderError`."""
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
            # Only when complete: a copy that is cut off never looks like a cell.
            copy.rename(target)
        except OSError as error:
            raise RunFolderError(f"{target}: cannot be copied from {source} ({error.strerror or error})") from None
        finally:
            shutil.rmtree(copy, ignore_errors=True)
    return True


def _is(cell: Cell, source: Path) -> bool:
    result = RunData.read(source) if source.is_dir() else None
    if result is None or result.numbers.get("fingerprint") != cell.config.fingerprint():
        return False
    kept_rounds = {round_of(path) for path in finished_folders(RunFolder(source).client_models)}
    # No number of the run, so the fingerprint lacks it.
    if not kept_rounds.issuperset(cell.config.checkpoint.keep_clients):
        return False
    return finished_runs.version_of(source) == __version__
