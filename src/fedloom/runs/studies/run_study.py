"""Runs the cells of a study or of a comparison, on any number of processes and machines."""

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from fedloom.core.errors import ConfigError, RunFolderError, check_choice, short_repr
from fedloom.data import Scenario
from fedloom.engine.ray import connected
from fedloom.evaluation.protocols import no_model_error, offered_protocols
from fedloom.methods.catalogue import offered_models
from fedloom.nets.user_model import NOT_SENT
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.run import Existing
from fedloom.runs.storage import folders
from fedloom.runs.storage.data_record import KEY, refuse_mixed_data
from fedloom.runs.storage.finished_runs import refuse_mixed, version_of
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.studies.live_progress import Listener
from fedloom.runs.studies.outcome import Outcome, outcome
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.runner import Runner, on_ray, run_jobs
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
        callbacks: copied for every run.
        one_core: engine `auto` is serial also for one worker, which makes the seconds of all runs comparable.
        allow_mixed: the folder may have cells of other versions of fedloom.

    Raises `ConfigError` before any cell runs, with the folder unchanged; `RunFolderError` for a folder that cannot be
    used, and for a full disk. Other errors are written to the cell's NAME.error.txt, and the other cells still run.
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


def check_jobs(jobs: Any) -> None:
    """Raise `ConfigError` unless this is a number of processes."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise ConfigError(f"jobs = {short_repr(jobs)}: need the number of processes, 1 or more")


def refuse_other_versions(study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell]) -> None:
    """Raise `ConfigError` if `cells` and the finished runs in `study_folder` would mix versions of fedloom."""
    existing, folders = read(study_folder.path), set(_folders(study, study_folder, cells))
    whole = study if existing is None or study.holds(existing) else existing
    versions: dict[str, str | None] = {}
    for folder in _folders(whole, study_folder, whole.cells):
        if folder in folders or study_folder.finished(folder):
            with contextlib.suppress(RunFolderError):  # damaged runs are not joined with others
                versions[str(study_folder.cell(folder))] = version_of(study_folder.cell(folder))
    refuse_mixed(versions, more=not all(map(study_folder.finished, folders)))


def _folders(study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell]) -> list[str]:
    """Return the run folders of the trials of `cells`, and of the cells whose hyperparameters are known."""
    choices = Choices(study, study_folder)
    tuned = (choices.of(job)[0] if isinstance(job, Cell) else job for job in jobs_of(study, cells))
    return [job.folder for job in tuned if job is not None]


def compare(
    configs: Sequence[RunConfig],
    *,
    out: Path | None,
    existing: Existing = "resume",
    jobs: int | None = None,
    listener: Listener = lambda event: None,
    scenario: Scenario | None = None,
    callbacks: Sequence[Callback] = (),
    result_type: type[RunData] = RunData,
) -> list[RunData]:
    """Run all configs in folders below `out`, and return their results in the order of the configs.

    The configs are the cells of a study with one setting, which ends with the first error.

    Args:
        configs: one for each run; no two are equal.
        out: a folder; None keeps nothing on disk.
        existing: whether finished runs are reused and unfinished ones resumed ("resume"), or all start again ("fresh").
        jobs: processes at a time; None for one per core, at most one per run. Numbers do not depend on it.
        listener: called with news of runs, by their position in `configs`.
        scenario: used by all runs instead of the configs'.
        callbacks: copied for every run.
        result_type: the class of the results that callbacks see.

    Raises the first error of any run; runs in progress keep their checkpoints, and no other run starts. Raises
    `ConfigError` before any run for equal ones, for a method without the model that is tested, and for several
    processes without `out`, with a scenario that is an object, or with a model that cannot be sent to them;
    `RunFolderError` if `out` cannot be used, for a full disk, and if a process was ended from outside.
    """
    check_choice("existing", existing, get_args(Existing))
    cells = [Cell("", config.method, "", {}, config) for config in configs]
    for name, times in Counter(cell.folder for cell in cells).items():
        if times > 1:
            raise ConfigError(f"run {name} is there twice: compare each once")
    _refuse_untestable(configs)
    workers = min(jobs or os.cpu_count() or 1, len(cells))
    if workers > 1 and (out is None or scenario is not None):
        raise ConfigError(f"jobs = {jobs}: several processes need out, and no scenario that is an object; use jobs=1")
    factories = (model.factory for config in configs for model in config.models()) if workers > 1 else ()
    for factory in filter(None, factories):
        if reason := factory.cannot_be_sent():
            raise ConfigError(NOT_SENT.format(factory.title, reason))
    study, folder = StudyPlan({}, cells, [], {}), None if out is None else StudyFolder(out)
    if out is not None:
        folders.refuse_links(out / cell.folder for cell in cells)
        with folders.creating(out, "comparison"):
            folders.claim(out, "comparison")
    runner = Runner(study, folder, cells, "raise", existing, callbacks, scenario, workers < 2, result_type)
    try:
        run_jobs(runner, workers, "jobs", listener)
    finally:
        if out is not None:
            folders.remove_if_empty(out)
    # Child processes send no results; these are read from their folders.
    stored = (RunData.read(out / cell.folder) for cell in cells) if out is not None and workers > 1 else ()
    results = [*runner.results.values(), *(result for result in stored if result is not None)]
    refuse_mixed_data((str(result.folder), result.scenario.get(KEY)) for result in results)
    return results


def _refuse_untestable(configs: Sequence[RunConfig]) -> None:
    """Refuse a method that has no model for any protocol of its run, before the others have trained for nothing."""
    by_request = {
        (config.method, config.preset, repr(config.options), config.evaluation.tested_protocols): config
        for config in configs
    }
    if len(by_request) == 1:  # the first run says so itself, before it trains
        return
    for config in by_request.values():
        tested = config.evaluation.tested_protocols
        try:
            models = offered_models(config.build_method())
        except Exception:  # a run that cannot begin says why
            continue
        if "few-shot" not in tested and not set(offered_protocols(models)) & set(tested):
            raise no_model_error(config.method, tested[0])
