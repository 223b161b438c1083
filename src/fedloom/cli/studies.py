"""The command `study`: a grid of cells in a folder, which processes and machines can share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedloom.cli import shared
from fedloom.cli.comparisons import sections_of_studies, show_comparison
from fedloom.core.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.runs.studies.plan import Cell, StudyPlan
    from fedloom.runs.studies.study_folder import StudyFolder
    from fedloom.runs.studies.tuning import Job


Plan = Annotated[bool, typer.Option("--plan", help="Show the runs, finished and open, and their time; run nothing.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Run matching cells only, e.g. 'hard/*', fedavg or 'fedavg/seed0'; may be repeated."),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes of this call; other calls may share the folder.")]


def study(
    file: Annotated[Path, typer.Argument(help="A YAML file with settings, methods, seeds and lists; see the docs.")],
    overrides: shared.Overrides = None,
    out: shared.Folder = None,
    plan: Plan = False,
    only: Only = None,
    workers: Workers = 1,
    on: Annotated[
        Literal["here", "ray"], typer.Option(help="ray: run the cells as tasks of the Ray cluster at RAY_ADDRESS.")
    ] = "here",
    allow_mixed: shared.AllowMixed = False,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Run a grid of settings, methods and seeds; several processes or machines can share it, and it can resume."""
    from fedloom.runs.storage.folders import stopped_by_full_disk
    from fedloom.runs.studies.plan import read_study
    from fedloom.runs.studies.search_space import OF_STUDIES

    if on == "ray" and workers > 1:
        raise ConfigError(
            f"--on ray and --workers {workers}: the cluster decides how many cells run; leave one of them out"
        )
    shared.refuse_options(overrides or (), OF_STUDIES)
    planned = read_study(file, overrides or ())
    shared.note_unused_options(overrides, {cell.config.method for cell in planned.cells})
    folder = out or Path("runs") / f"study-{file.stem}"
    with stopped_by_full_disk(folder):
        run_and_report(planned, folder, only or (), plan, workers, quiet, as_json, on, allow_mixed)


def run_and_report(
    study: StudyPlan,
    out: Path,
    only: Sequence[str],
    plan: bool,
    workers: int,
    quiet: bool,
    as_json: bool,
    on: Literal["here", "ray"] = "here",
    allow_mixed: bool = False,
    one_core: bool = False,
    after_cells: Callable[[], None] = lambda: None,
) -> None:
    """Run the cells of a `study` in `out`, print their table, and write the report of all its finished cells.

    only: patterns of the cells; none for all. plan: print the plan instead. workers, on, allow_mixed, one_core: as in
    `run_study`. after_cells: writes files that the report reads; called when all cells have ended, also after failures.
    Exits with 1 if a cell failed or remains.
    """
    from fedloom.results.comparison import Comparison
    from fedloom.results.report import check_place, write_report
    from fedloom.runs.storage.finished_runs import refuse_mixed_results
    from fedloom.runs.studies.live_progress import ProgressDisplay
    from fedloom.runs.studies.outcome import outcome
    from fedloom.runs.studies.run_study import run_study
    from fedloom.runs.studies.study_folder import StudyFolder, read
    from fedloom.runs.studies.tuning import jobs_of

    cells, study_folder = study.chosen(only), StudyFolder(out)
    study_folder.check(study)
    jobs = jobs_of(study, cells)
    if plan:
        _show_plan(study, study_folder, cells, jobs, as_json)
        return
    try:
        with shared.output_folder(out), ProgressDisplay([job.config for job in jobs], quiet=quiet or as_json) as live:
            check_place(out / "report.html")
            options: dict[str, Any] = {"workers": workers, "on": on, "one_core": one_core, "allow_mixed": allow_mixed}
            ended = run_study(study, study_folder, cells, listener=live, **options)
    finally:
        after_cells()
    done = Comparison(ended.cell_results)
    whole = read(out) or study  # which may be larger than what this call ran
    every = outcome(whole, study_folder, whole.cells).cell_results
    if not allow_mixed:
        refuse_mixed_results(every)  # another process may have had another version
    page = write_report(every, out / "report.html", parts=sections_of_studies([out])) if every else None
    if as_json:
        counts_by_outcome = {"done": ended.done, "failed": ended.failed, "left": ended.remaining}
        shared.print_json(counts_by_outcome | {"table": done.rows(), "report": None if page is None else str(page)})
    else:
        if page is not None and done.results:
            show_comparison(done, page)
        shared.print_lines(f"{len(ended.done)} done, {len(ended.failed)} failed, {len(ended.remaining)} left")
    names_by_reason: dict[str, list[str]] = {}  # all seeds of a method often fail for the same reason
    for name, why in ended.failed.items():
        names_by_reason.setdefault(why, []).append(name)
    for why, names in names_by_reason.items():
        shared.say(f"failed: {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}")
    if ended.failed or ended.remaining:
        shared.say(
            f"errors are stored in {out} as *.error.txt; the same command tries failed cells again, and damaged ones "
            "once their folder is deleted"
        )
        raise typer.Exit(1)


def _show_plan(
    study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell], jobs: Sequence[Job], as_json: bool
) -> None:
    """Print the state of trials and cells, and the time that the open `jobs` (cells and their trials) will take."""
    from fedloom.core.text import counted, seconds_text
    from fedloom.runs.studies.tuning import job_states, seconds_left

    states = job_states(study, study_folder, cells, jobs)
    counts = Counter(states.cells.values())
    seconds = seconds_left(study_folder, [job for job in jobs if states.of(job) != "done"])
    if as_json:
        plan = {"study": study.hash, "cells": states.cells, "trials": states.trials, "runs": len(jobs)}
        shared.print_json(plan | {"counts": counts, "seconds_left": seconds})
        return
    shared.print_lines(*(f"{state:>9}  {name}" for name, state in (states.trials | states.cells).items()))
    totals = ", ".join(f"{n} {state}" for state, n in counts.items())
    with_trials = f" and {counted(len(states.trials), 'trial')} of tuning" if states.trials else ""
    shared.print_lines(f"{len(cells)} cells{with_trials} in {len(jobs)} runs: {totals}")
    if seconds:
        shared.print_lines(f"about {seconds_text(seconds)} on one core, judging by the finished runs")
