"""Compare methods and seeds on equal terms: the same scenario, initial weights and batches."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedloom.core.errors import ConfigError
from fedloom.data import Scenario
from fedloom.evaluation.protocols import no_model_error, offered_protocols
from fedloom.methods.catalogue.abilities import offered_models
from fedloom.runs.callbacks import Callback
from fedloom.runs.config.run_config import RunConfig
from fedloom.runs.run import Existing
from fedloom.runs.storage import ownership
from fedloom.runs.storage.data_record import KEY, refuse_mixed_data
from fedloom.runs.storage.run_data import RunData
from fedloom.runs.studies.events import Listener
from fedloom.runs.studies.plan import Cell, StudyPlan
from fedloom.runs.studies.runner import Runner
from fedloom.runs.studies.side_by_side import run_jobs
from fedloom.runs.studies.study_folder import StudyFolder


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
        callbacks: every run gets copies of its own.
        result_type: the class of the results that callbacks see.

    Raises the first error of any run; runs in progress keep their checkpoints, and no other run starts. Raises
    `ConfigError` before any run for equal ones, for a method without the model that is tested, and for several
    processes without `out` or with a scenario or model passed as an object; `RunFolderError` if `out` cannot be used,
    for a full disk, and if a process was ended from outside.
    """
    cells = [Cell("", config.method, "", {}, config) for config in configs]
    for name, times in Counter(cell.folder for cell in cells).items():
        if times > 1:
            raise ConfigError(f"run {name} is there twice: compare each once")
    _refuse_untestable(configs)
    workers = min(jobs or os.cpu_count() or 1, len(cells))
    objects = scenario is not None or any(model.factory for config in configs for model in config.models())
    if workers > 1 and (out is None or objects):
        raise ConfigError(
            f"jobs = {jobs}: several processes need out, and no scenario or model that is an object; use jobs=1"
        )
    study, folder = StudyPlan({}, cells, [], {}), None if out is None else StudyFolder(out)
    if out is not None:
        ownership.refuse_links(out / cell.folder for cell in cells)
        with ownership.creating(out, "comparison"):
            ownership.claim(out, "comparison")
    runner = Runner(
        study,
        folder,
        cells,
        "raise",
        existing=existing,
        callbacks=callbacks,
        scenario=scenario,
        all_cores=workers < 2,
        result_type=result_type,
    )
    try:
        run_jobs(runner, workers, "jobs", listener)
    finally:
        if out is not None:
            ownership.remove_if_empty(out)
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
