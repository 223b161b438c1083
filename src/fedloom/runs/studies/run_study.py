"""Run the cells of a study on any number of processes and machines."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Literal

from fedloom.core.errors import RunFolderError
from fedloom.engine.ray.cluster import connected
from fedloom.runs.callbacks import Callback
from fedloom.runs.storage.versions import refuse_mixed, version_of
from fedloom.runs.studies.events import Listener
from fedloom.runs.studies.on_ray import on_ray
from fedloom.runs.studies.outcome import Outcome, outcome
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.runner import Runner
from fedloom.runs.studies.side_by_side import run_jobs
from fedloom.runs.studies.study_folder import StudyFolder, read
from fedloom.runs.studies.tuning import Choices, jobs_of


def run_study(
    study: StudyPlan,
    study_folder: StudyFolder,
    cells: Sequence[Cell],
    *,
    workers: int = 1,
    on: Literal["here", "ray"] = "here",
    listener: Listener = lambda event: None,
    callbacks: Sequence[Callback] = (),
    one_core: bool = False,
    allow_mixed: bool = False,
) -> Outcome:
    """Run the unfinished ones of `cells`, after the trials that they need, and return their outcome.

    Args:
        study: the whole study.
        study_folder: the folder with its runs.
        cells: the cells to run.
        workers: processes of this call.
        on: "ray" runs the cells on a Ray cluster instead.
        listener: called with news of runs, by their position in `jobs_of`.
        callbacks: every run gets copies of its own.
        one_core: engine `auto` is serial also for one worker, so that seconds of a run are always those of one core.
        allow_mixed: the folder may have cells of other versions of fedloom.

    Raises `ConfigError` before any cell runs, with the folder unchanged; `RunFolderError` for a folder that cannot be
    used, and for a full disk. Other errors of a cell are written beside its folder, and the other cells run.
    """
    jobs = jobs_of(study, cells)
    study_folder.check(study)
    if not allow_mixed:
        refuse_other_versions(study, study_folder, cells)
    workers = min(workers, len(jobs))
    alone = workers < 2 and on == "here"
    with connected("--on ray") if on == "ray" else contextlib.nullcontext() as cluster:
        study_folder.claim(study)  # only after all checks
        runner = Runner(study, study_folder, jobs, "record", callbacks=callbacks, all_cores=alone and not one_core)
        if cluster is not None:
            on_ray(cluster, runner, listener)
        else:
            run_jobs(runner, workers, "workers", listener)
    return outcome(study, study_folder, cells)


def refuse_other_versions(study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell]) -> None:
    """Raise `ConfigError` if the cells and the folder's runs would have several versions of fedloom.

    Args:
        study: the study, as its file says.
        study_folder: the folder, which may have a larger study.
        cells: the cells that are about to run.
    """
    existing, folders = read(study_folder.path), set(_folders(study, study_folder, cells))
    whole = study if existing is None or study.holds(existing) else existing
    versions: dict[str, str | None] = {}
    for folder in _folders(whole, study_folder, whole.cells):
        if folder in folders or study_folder.finished(folder):
            with contextlib.suppress(RunFolderError):  # damaged runs are not joined with others
                versions[str(study_folder.cell(folder))] = version_of(study_folder.cell(folder))
    refuse_mixed(versions, more=not all(map(study_folder.finished, folders)))


def _folders(study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell]) -> list[str]:
    """Return the run folders of cells, of tuned ones as far as they are chosen, and of their trials."""
    choices = Choices(study, study_folder)
    tuned = (choices.of(job)[0] if isinstance(job, Cell) else job for job in jobs_of(study, cells))
    return [job.folder for job in tuned if job is not None]
