"""The command `study`: a grid of cells in a folder that processes and machines share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from fedloom.cli import shared
from fedloom.cli.comparisons import sections_of_studies, show_comparison
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError

if TYPE_CHECKING:
    from fedloom.runs.studies.plan import Cell, StudyPlan
    from fedloom.runs.studies.study_folder import StudyFolder
    from fedloom.runs.studies.tuning import Job


Plan = Annotated[
    bool, typer.Option("--plan", help="Show trials and cells, done and left, and the time ahead; run nothing.")
]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Cells whose names fit, e.g. 'hard/*', fedavg or 'fedavg/seed0'; may be given several times."),
]
On = Annotated[
    Literal["here", "ray"], typer.Option(help="ray: the cells are tasks of the Ray cluster that RAY_ADDRESS names.")
]
AllowMixed = Annotated[
    bool, typer.Option("--allow-mixed", help="Join cells that other versions of fedloom made with those of this one.")
]
Workers = Annotated[int, typer.Option(min=1, help="Processes of this call; others may share the folder.")]


def study(
    file: Annotated[Path, typer.Argument(help="A YAML with settings, methods, seeds and lists; see the docs.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value on top of the file, e.g. rounds=10.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the study; by default below runs/.")] = None,
    plan: Plan = False,
    only: Only = None,
    workers: Workers = 1,
    on: On = "here",
    allow_mixed: AllowMixed = False,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """A grid of cells (settings, methods, seeds): resumable, in any order, by several processes or machines."""
    from fedloom.runs.storage.folders import stopped_by_full_disk
    from fedloom.runs.studies.plan import read_study
    from fedloom.runs.studies.search_space import OF_STUDIES

    if on == "ray" and workers > 1:
        raise ConfigError(
            f"--on ray and --workers {workers}: the cluster says how many cells run; leave one of them out"
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
    """Show the plan of a study, or run it, show what was run, and write the report of all its finished cells.

    out: its folder. only: patterns of cells to run; none runs all. plan: show the plan alone. workers: processes of
    this call. on: "ray" runs the cells on a Ray cluster. allow_mixed: the folder may have cells of other versions of
    fedloom, which else raise `ConfigError` before any runs. one_core: as in `run_study`. after_cells: writes files that
    the report reads; called once all cells have ended, also after failures. Exits with 1 if a cell failed or is left.
    """
    from fedloom.results.comparison import Comparison
    from fedloom.results.report import check_place, write_report
    from fedloom.results.report.drift import drift_sections
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
        show_plan(study, study_folder, cells, jobs, as_json)
        return
    try:
        with shared.output_folder(out), ProgressDisplay([job.config for job in jobs], quiet=quiet or as_json) as live:
            check_place(out / "report.html")
            ended = run_study(
                study,
                study_folder,
                cells,
                workers=workers,
                on=on,
                listener=live,
                one_core=one_core,
                allow_mixed=allow_mixed,
            )
    finally:
        after_cells()
    done = Comparison(ended.cell_results)
    whole = read(out) or study  # which may be larger than what this call ran
    every = outcome(whole, study_folder, whole.cells).cell_results
    if not allow_mixed:
        refuse_mixed_results(every)  # another process may have had another version
    parts = [*sections_of_studies([out]), *drift_sections(every)]
    page = write_report(every, out / "report.html", parts=parts) if every else None
    if as_json:
        counts_by_outcome = {"done": ended.done, "failed": ended.failed, "left": ended.remaining}
        shared.print_json(counts_by_outcome | {"table": done.rows(), "report": None if page is None else str(page)})
    else:
        console = console_of(as_json)
        if page is not None and done.results:
            show_comparison(console, done, page)
        console.print(
            f"{len(ended.done)} done, {len(ended.failed)} failed, {len(ended.remaining)} left", soft_wrap=True
        )
    for why, names in _by_reason(ended.failed).items():
        shared.say(f"failed: {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}")
    if ended.failed or ended.remaining:
        shared.say(
            f"what failed is kept in {out} as *.error.txt; the same command tries it again, and what is damaged once "
            "its folder is deleted"
        )
        raise typer.Exit(1)


def _by_reason(failed: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of failed cells by reason, because all seeds and settings of a method often fail alike."""
    names_by_reason: dict[str, list[str]] = {}
    for name, why in failed.items():
        names_by_reason.setdefault(why, []).append(name)
    return names_by_reason


def show_plan(
    study: StudyPlan, study_folder: StudyFolder, cells: Sequence[Cell], jobs: Sequence[Job], as_json: bool
) -> None:
    """Print the trials of tuning and the cells with how far they are, and the time of those left; nothing is written.

    study_folder: the folder with its runs. cells: the chosen cells. jobs: these cells and the trials that they need.
    """
    from fedloom.core.text import counted, seconds_text
    from fedloom.runs.studies.tuning import job_states, seconds_left

    states = job_states(study, study_folder, cells, jobs)
    counts = Counter(states.cells.values())
    seconds = seconds_left(study_folder, [job for job in jobs if states.of(job) != "done"])
    if as_json:
        plan = {
            "study": study.hash,
            "cells": states.cells,
            "trials": states.trials,
            "runs": len(jobs),
            "counts": counts,
        }
        shared.print_json(plan | {"seconds_left": seconds})
        return
    console = console_of(as_json)
    shared.print_lines(console, *(f"{state:>9}  {name}" for name, state in (states.trials | states.cells).items()))
    totals = ", ".join(f"{n} {state}" for state, n in counts.items())
    with_trials = f" and {counted(len(states.trials), 'trial')} of tuning" if states.trials else ""
    console.print(f"{len(cells)} cells{with_trials} in {len(jobs)} runs: {totals}", soft_wrap=True)
    if seconds:
        console.print(f"about {seconds_text(seconds)} on one core, as long as the finished runs took")
