"""The commands `compare` and `report`, and the sections that studies add to a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedloom.cli import shared
from fedloom.core.console import console_of
from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text, parse_json, write_atomic

if TYPE_CHECKING:
    from fedloom.papers.recipe import Recipe
    from fedloom.results.comparison import Comparison
    from fedloom.results.page_sections import PageSection
    from fedloom.runs.config.run_config import RunConfig
    from fedloom.runs.run import Existing
    from fedloom.runs.storage.run_data import RunData


def compare(
    config: shared.Config,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="key=value on top of the config; a list compares several: scenario.alpha=[0.1,1.0]."),
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods, separated by commas; by default fedavg and the config's (or fedsc).")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Number of seeds, from --seed or the config's on; default 3.")
    ] = None,
    references: Annotated[
        bool,
        typer.Option(
            "--references",
            help="Add the baselines to beat: fedavg and central, or local, fedavg+finetune and fedavg+lpft.",
        ),
    ] = False,
    out: shared.Folder = None,
    fresh: shared.Fresh = False,
    seed: shared.Seed = None,
    rounds: shared.Rounds = None,
    jobs: shared.Jobs = None,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Compare methods, seeds and settings on equal terms; finished runs are reused, unfinished ones continued."""
    from fedloom.runs.config.grid import variants, variants_with_references
    from fedloom.runs.config.run_config import load

    names = None if methods is None else [name.strip() for name in methods.split(",")]
    make = variants_with_references if references else variants
    config_keys = load(shared.config_path(config), shared.overrides_with_options(overrides, seed=seed, rounds=rounds))
    configs = make(config_keys, names, seeds)
    shared.note_unused_options(overrides, {config.method for config in configs})
    folder = out or Path("runs") / f"compare-{config.stem}"
    run_comparison(configs, folder, "fresh" if fresh else "resume", jobs, as_json, quiet)


def run_comparison(
    configs: Sequence[RunConfig], out: Path, existing: Existing, jobs: int | None, as_json: bool, quiet: bool
) -> None:
    """Run all `configs`, at most `jobs` at a time, print their table, and write the report to the folder `out`."""
    from fedloom.results.comparison import Comparison
    from fedloom.results.report import check_place, write_report
    from fedloom.runs.studies.live_progress import ProgressDisplay
    from fedloom.runs.studies.run_study import compare as compare_runs

    with shared.output_folder(out), ProgressDisplay(configs, quiet=quiet or as_json) as live:
        check_place(out / "report.html")
        done = Comparison(compare_runs(configs, out=out, existing=existing, jobs=jobs, listener=live))
    page = write_report(done.results, out / "report.html")
    if as_json:
        shared.print_json({"table": done.rows(), "verdict": done.verdict(), "report": str(page)})
    else:
        show_comparison(done, page)


def show_comparison(done: Comparison, page: Path) -> None:
    """Print the table of finished runs, the verdict, notes, tuned options, and the path of the report."""
    from fedloom.cli.terminal import print_comparison
    from fedloom.results.unseen_tables import LEFT_OUT_CAPTION, NEWCOMERS_CAPTION

    print_comparison(console_of(False), done.rows())
    console_of(False).print(done.verdict(), soft_wrap=True)
    for caption, text in ((LEFT_OUT_CAPTION, done.domain_table()), (NEWCOMERS_CAPTION, done.newcomer_table())):
        if text:
            shared.print_lines(f"\n{caption}\n{text}\n")
    shared.print_lines(*done.not_offered(), *done.same_runs(), *done.tuned(), f"\nreport: {page}")


def report(
    runs: shared.Runs,
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the first folder.")] = None,
    allow_mixed: shared.AllowMixed = False,
    as_json: shared.AsJson = False,
) -> None:
    """Write one self-contained report.html from finished runs."""
    from fedloom.core.text import counted
    from fedloom.diagnosis.section import diagnosis_sections
    from fedloom.results.comparison import Comparison
    from fedloom.results.report import check_place, write_report
    from fedloom.runs.studies.outcome import collect

    if out is not None:
        check_place(out)
    collected = collect(runs, allow_mixed)
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
_REPRODUCED = "reproduced.json"


def save_recipe(folder: Path, recipe: Recipe, setting: str) -> None:
    """Store in a study's folder which table it reproduces in which setting, for every later report."""
    write_atomic(folder / _REPRODUCED, json_text({"name": recipe.name, "setting": setting}))


def sections_of_studies(folders: Sequence[Path], with_paper_values: bool = True) -> list[PageSection]:
    """Return the sections of the studies in `folders`: their progress, and our values next to a paper's.

    Raises `RunFolderError` for a study that cannot be read.
    """
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
        if with_paper_values and (folder / _REPRODUCED).exists():
            parts.insert(0, _paper_section(folder, failed_of(study, outcomes)))
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
    from fedloom.papers.measurements import read_measurements
    from fedloom.papers.recipe import find_recipe
    from fedloom.papers.table_section import as_part

    try:
        stored = parse_json((folder / _REPRODUCED).read_text(encoding="utf-8"))
        measurements = read_measurements(folder / VALUES) if (folder / VALUES).exists() else []
        return as_part(find_recipe(stored["name"]), measurements, stored["setting"], failed)
    except (ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())
        raise RunFolderError(
            f"{folder / _REPRODUCED}: damaged ({why}); `fedloom reproduce` with the same words writes it again"
        ) from None
