"""The commands `compare`, `study` and `report`, and the sections that studies add to a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedloom.cli import shared
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.files import json_text, parse_json
from fedloom.core.text import lists_by_key, split_names

if TYPE_CHECKING:
    from fedloom.results.comparison import Comparison
    from fedloom.results.page_sections import PageSection
    from fedloom.runs.config.run_config import RunConfig
    from fedloom.runs.run import Existing
    from fedloom.runs.storage.run_data import RunData
    from fedloom.runs.studies.plan import StudyPlan


def compare(
    config: shared.Config,
    overrides: list[str] | None = None,
    methods: str | None = None,
    seeds: int | None = None,
    references: bool = False,
    out: Path | None = None,
    fresh: bool = False,
    seed: int | None = None,
    rounds: int | None = None,
    jobs: int | None = None,
    evaluation: str = "",
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Compare methods, seeds and settings on equal terms; finished runs are reused, unfinished ones continued."""
    from fedloom.runs.config.grid import variants, variants_with_references
    from fedloom.runs.config.run_config import load

    make = variants_with_references if references else variants
    config_keys = load(shared.config_path(config), shared.overrides_with_options(overrides, seed=seed, rounds=rounds))
    configs = make(config_keys, None if methods is None else split_names(methods), seeds)
    shared.note_unused_options(overrides, {config.method for config in configs})
    folder = out or Path("runs") / f"compare-{config.stem}"
    run_comparison(configs, folder, fresh, jobs, as_json, quiet, evaluation)


def run_comparison(
    configs: Sequence[RunConfig], out: Path, fresh: bool, jobs: int | None, as_json: bool, quiet: bool, tests: str = ""
) -> None:
    """Run `configs`, `jobs` at a time, print their table (of the evaluation `tests`), and write the report to `out`."""
    from fedloom.results.comparison import Comparison
    from fedloom.results.report import check_place, write_report
    from fedloom.runs.storage.run_data import evaluated
    from fedloom.runs.studies.live_progress import ProgressDisplay
    from fedloom.runs.studies.run_study import compare as compare_runs

    with shared.output_folder(out), ProgressDisplay(configs, quiet=quiet or as_json) as live:
        # Before the runs: otherwise a page that cannot be written would fail after hours of training.
        check_place(out / "report.html")
        existing: Existing = "fresh" if fresh else "resume"
        done = Comparison(compare_runs(configs, out=out, existing=existing, jobs=jobs, listener=live))
    if tests:
        tested, without = evaluated(done.results, tests)
        done = Comparison(tested)
        say_left_out(without)
    page = write_report(done.results, out / "report.html")
    if as_json:
        shared.print_json({"table": done.rows(), "verdict": done.verdict(), "report": str(page)})
    else:
        show_comparison(done, f"report: {page}")


def show_comparison(done: Comparison, last_line: str) -> None:
    """Print the tables of finished runs, the verdict, notes, tuned options, and a line such as the report's path."""
    from fedloom.cli.terminal import print_comparison
    from fedloom.results.result import group_table
    from fedloom.results.unseen_tables import LEFT_OUT_CAPTION, NEWCOMERS_CAPTION

    print_comparison(console_of(False), done.rows())
    console_of(False).print(done.verdict(), soft_wrap=True)
    unseen = ((LEFT_OUT_CAPTION, done.domain_table()), (NEWCOMERS_CAPTION, done.newcomer_table()))
    groups = group_table(done.results)
    for caption, text in (*unseen, (groups.caption, groups.rows and groups.formatted("markdown"))):
        if text:
            shared.print_lines(f"\n{caption}\n{text}\n")
    shared.print_lines(*done.not_offered(), *done.same_runs(), *done.tuned(), f"\n{last_line}")


def study(
    file: Annotated[Path, typer.Argument(help="A YAML file with settings, methods and seeds: `fedloom help studies`.")],
    overrides: shared.Overrides = None,
    out: Path | None = None,
    plan: bool = False,
    only: list[str] | None = None,
    workers: int = 1,
    on: Literal["here", "ray"] = "here",
    allow_mixed: bool = False,
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
    """Run the chosen cells (patterns in `only`) of a `study` in `out`, or show the `plan`; print their table, and write
    the report of all finished cells. workers, on, allow_mixed, one_core: as in `run_study`. after_cells: writes files
    that the report reads, also after failures. Exits with 1 if a cell failed or remains."""
    from fedloom.results.comparison import Comparison
    from fedloom.results.looks import overview, overview_lines, stages
    from fedloom.results.report import check_place, write_report
    from fedloom.runs.storage.finished_runs import refuse_mixed_results
    from fedloom.runs.studies.live_progress import ProgressDisplay
    from fedloom.runs.studies.outcome import outcome
    from fedloom.runs.studies.run_study import run_study
    from fedloom.runs.studies.study_folder import StudyFolder, read
    from fedloom.runs.studies.tuning import jobs_of

    cells, study_folder = study.chosen(only), StudyFolder(out)
    study_folder.check(study)
    if plan:
        shown = overview(study, study_folder, cells)
        states = shown["trials"] | shown["cells"]
        if as_json:
            shared.print_json(shown)
        else:
            shared.print_lines(*(f"{state:>9}  {name}" for name, state in states.items()), *overview_lines(shown))
        return
    options: dict[str, Any] = {"workers": workers, "on": on, "one_core": one_core, "allow_mixed": allow_mixed}
    try:
        for stage in stages(study, study_folder, cells):
            configs = [job.config for job in jobs_of(study, stage)]
            with shared.output_folder(out), ProgressDisplay(configs, quiet=quiet or as_json) as live:
                check_place(out / "report.html")
                run_study(study, study_folder, stage, listener=live, **options)
    finally:
        after_cells()
    ended = outcome(study, study_folder, cells)
    done = Comparison(ended.cell_results)
    whole = read(out) or study  # which may be larger than what this call ran
    every = outcome(whole, study_folder, whole.cells).cell_results
    if not allow_mixed:
        refuse_mixed_results(every)  # another process may have had another version
    page = write_report(every, out / "report.html", parts=sections_of_studies([out])) if every else None
    if as_json:
        counts_by_outcome = {"done": ended.done, "failed": ended.failed, "left": ended.remaining}
        counts_by_outcome |= {"spared": ended.spared} if study.looks else {}
        shared.print_json(counts_by_outcome | {"table": done.rows(), "report": None if page is None else str(page)})
    else:
        if page is not None and done.results:
            show_comparison(done, f"report: {page}")
        spared = f", {len(ended.spared)} spared (their rows are decided)" if ended.spared else ""
        shared.print_lines(f"{len(ended.done)} done, {len(ended.failed)} failed, {len(ended.remaining)} left{spared}")
    # all seeds of a method often fail for the same reason
    for why, names in lists_by_key((why, name) for name, why in ended.failed.items()).items():
        shared.say(f"failed: {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {why}")
    if ended.failed or ended.remaining:
        shared.say(
            f"errors are stored in {out} as *.error.txt; the same command tries failed cells again, and damaged ones "
            "once their folder is deleted"
        )
        raise typer.Exit(1)


def report(
    runs: shared.Runs,
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the first folder.")] = None,
    evaluation: str = "",
    clinical: Annotated[bool, typer.Option("--clinical", help="One page for each run, in TRIPOD+AI's order.")] = False,
    allow_mixed: bool = False,
    as_json: shared.AsJson = False,
) -> None:
    """Write one self-contained report.html from finished runs."""
    from fedloom.core.text import counted
    from fedloom.diagnosis.section import diagnosis_sections
    from fedloom.results.clinical import write_clinical
    from fedloom.results.comparison import Comparison
    from fedloom.results.report import check_place, write_report
    from fedloom.runs.studies.outcome import collect

    if out is not None:
        check_place(out)
    collected = collect(runs, allow_mixed, evaluation)
    if clinical:
        if out is not None and len(collected.results) > 1:
            raise ConfigError(f"--out {out}: each of {len(collected.results)} runs has its own page; name one run")
        pages = [(run, run.folder, out or run.folder / "clinical.html") for run in collected.results if run.folder]
        counts = {str(page): write_clinical(run, folder, page) for run, folder, page in pages}
        lines = [f"{', '.join(f'{n} {state}' for state, n in of.items())}: {page}" for page, of in counts.items()]
        say_left_out(collected.left_out)
        shared.print_lines(*([json_text({"reports": counts})] if as_json else lines))
        return
    done = Comparison(collected.results)
    parts = sections_of_studies(_studies(runs, collected.results, allow_mixed))
    parts += diagnosis_sections(result.folder for result in done.results if result.folder is not None)
    limits = [text for part in parts for text in part.limits]
    page = write_report(done.results, out or runs[0] / "report.html", parts=parts)
    if as_json:
        left_out = [{"folder": str(path), "why": why} for path, why in collected.left_out]
        shared.print_json({"report": str(page), "table": done.rows(), "left_out": left_out, "limits": limits})
        return
    say_left_out(collected.left_out)
    for text in limits:
        shared.say(text)
    shared.print_lines(f"{counted(len(done), 'run')}: {page}")


def _studies(runs: Sequence[Path], results: Sequence[RunData], allow_mixed: bool) -> list[Path]:
    """Return the studies of runs found below the named folders `runs`; none if the runs may be mixed."""
    from fedloom.runs.studies.outcome import studies_of

    return [] if allow_mixed else studies_of([result for result in results if result.folder not in runs])


def say_left_out(left_out: Sequence[tuple[Path, str]]) -> None:
    """Print which folders are left out, and why."""
    for path, why in left_out:
        shared.say(f"left out: {path}: {why}")


def say_limits(runs: Sequence[Path], results: Sequence[RunData], allow_mixed: bool) -> None:
    """Print how many cells failed or are unfinished in the studies of `results`, which are below the folders `runs`."""
    for part in sections_of_studies(_studies(runs, results, allow_mixed), with_paper_values=False):
        for limit in part.limits:
            shared.say(limit)


VALUES = "reproduced.csv"
REPRODUCED = "reproduced.json"  # which table a study reproduces in which setting, for every later report


def sections_of_studies(folders: Sequence[Path], with_paper_values: bool = True) -> list[PageSection]:
    """Return the sections of the studies in `folders`: their progress, and our values next to a paper's."""
    if not folders:
        return []
    from fedloom.results.page_sections import progress
    from fedloom.runs.studies.outcome import failed_of, outcome
    from fedloom.runs.studies.study_folder import StudyFolder, read

    sections_of_page: list[PageSection] = []
    studies = [(folder, study) for folder in folders if (study := read(folder)) is not None]
    for number, (folder, study) in enumerate(studies):
        outcomes = outcome(study, StudyFolder(folder), study.cells)
        parts = [progress(study, outcomes)]
        if with_paper_values and (folder / REPRODUCED).exists():
            parts.insert(0, _paper_section(folder, failed_of(study, outcomes)))
        # Names are ids in the page, and every study has the same ones.
        if number:
            parts = [replace(part, name=f"{part.name}-{number + 1}") for part in parts]
        if len(studies) > 1:  # the reader must see which study a section is about
            parts = [
                replace(part, title=f"{part.title} ({folder})", limits=[f"{folder}: {text}" for text in part.limits])
                for part in parts
            ]
        sections_of_page += parts
    return sections_of_page


def _paper_section(folder: Path, failed: dict[tuple[str, str], dict[int, str]]) -> PageSection:
    from fedloom.papers.compared_values import as_part
    from fedloom.papers.measurements import read_measurements
    from fedloom.papers.recipe import find_recipe

    try:
        stored = parse_json((folder / REPRODUCED).read_text(encoding="utf-8"))
        measurements = read_measurements(folder / VALUES) if (folder / VALUES).exists() else []
        return as_part(find_recipe(stored["name"]), measurements, stored["setting"], failed)
    except (ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())
        raise RunFolderError(
            f"{folder / REPRODUCED}: damaged ({why}); `fedloom reproduce` with the same words writes it again"
        ) from None
