"""The command `reproduce`: a published table again, ours beside theirs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli.comparisons import VALUES, save_recipe
from fedloom.cli.shared import AsJson, Quiet, overrides_with_options, print_json, print_lines, say
from fedloom.cli.studies import AllowMixed, Only, run_and_report
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError
from fedloom.core.text import counted

if TYPE_CHECKING:
    from fedloom.papers.recipe import Recipe, Scale
    from fedloom.runs.studies.plan import Cell, StudyPlan

_BASIS = "all cells of a row as long as its finished ones in this folder took, on average"


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table, e.g. feddw/table1; --list names them all.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value on top of all cells, e.g. rounds=100.")
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Name every table, its cells, data and measured hours.")
    ] = False,
    plan: Annotated[bool, typer.Option("--plan", help="Cells, data and measured hours; nothing is run.")] = False,
    scale: Annotated[str, typer.Option(help="full: the paper's setting; small: a stated reduction.")] = "full",
    seeds: Annotated[int | None, typer.Option(min=1, max=10_000, help="How many; the recipe's unless given.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the study; by default below runs/.")] = None,
    only: Only = None,
    reuse: Annotated[
        list[Path] | None, typer.Option(help="Folder of another table or figure; its finished cells are copied.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Cells at a time, each on one core; other calls may share the folder.")
    ] = 1,
    allow_mixed: AllowMixed = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a published table or figure again: ours beside theirs, with a verdict for every value, or drawn."""
    from fedloom.cli.computed_figures import COMPUTED, show_computed
    from fedloom.papers.recipe import find_recipe
    from fedloom.runs.config.run_config import load

    if scale not in ("full", "small"):
        raise ConfigError(f"--scale {scale!r}: full or small")
    chosen: Scale = "full" if scale == "full" else "small"
    if list_all or name is None:
        if not list_all:
            raise ConfigError("name a table, e.g. feddw/table1, or ask for all with --list")
        show_tables(chosen, as_json)
        return
    if name in COMPUTED:
        given: dict[str, object] = {
            "key=value": overrides,
            "--plan": plan,
            "--scale small": chosen == "small",
            "--only": only,
        }
        given |= {"--reuse": reuse, "--workers": workers > 1}
        show_computed(name, out or Path("runs") / name.replace("/", "-"), seeds, given, as_json)
        return
    recipe = find_recipe(name)
    study = recipe.study(chosen, seeds, load(None, overrides_with_options(overrides)))
    folder = out or default_folder(name, chosen)
    cells = study.chosen(only or ())
    if plan:
        show_plan(recipe, study, cells, folder, chosen, as_json)
        return
    from fedloom.papers.figures import MODEL_FIGURES
    from fedloom.papers.recipe import refuse_missing
    from fedloom.runs.storage.folders import stopped_by_full_disk
    from fedloom.runs.studies.outcome import reusable
    from fedloom.runs.studies.outcome import reuse as copy_cells
    from fedloom.runs.studies.run_study import refuse_other_versions
    from fedloom.runs.studies.study_folder import StudyFolder

    study_folder = StudyFolder(folder)
    study_folder.check(study)
    finished = {cell.folder for source_folder in reuse or () for cell in reusable(study_folder, cells, source_folder)}
    finished |= {cell.folder for cell in cells if study_folder.finished(cell.folder)}
    refuse_missing([cell for cell in cells if cell.folder not in finished or recipe.table.kind in MODEL_FIGURES])
    if not allow_mixed:
        refuse_other_versions(study, study_folder, cells)
    with stopped_by_full_disk(folder):
        study_folder.claim(study)  # once nothing speaks against it
        for source_folder in reuse or ():
            copied = copy_cells(study_folder, cells, source_folder)
            say(f"{len(copied)} of {len(cells)} cells copied from {source_folder}")
        run_and_report(
            *(study, folder, only or (), False, workers, quiet, as_json),
            allow_mixed=allow_mixed,
            one_core=True,
            after_cells=lambda: write_paper_comparison(recipe, folder, chosen, overrides or (), allow_mixed),
        )


def show_tables(scale: Scale, as_json: bool) -> None:
    """Print every table with its cells, the data it needs, and the hours that its finished rows took below runs/."""
    from fedloom.cli.computed_figures import computed_rows
    from fedloom.papers.recipe import missing_sources, recipes, source_names

    summaries: list[dict[str, Any]] = []
    for name, recipe in recipes().items():
        row: dict[str, Any] = {"name": name, "title": f"{recipe.paper.title}, {recipe.table.title}"}
        if recipe.table.why_not_run is not None:
            nothing = {"cells": 0, "data": "", "missing": [], "hours": None, "facts": recipe.table.why_not_run}
            summaries.append(row | nothing)
            continue
        folder = default_folder(name, scale)
        study = recipe.study(scale, seeds=None if folder.exists() else 1)
        hours = [planned["hours"] for planned in planned_rows(study, study.cells, folder)] if folder.exists() else []
        row |= {"cells": recipe.seeds(scale) * len({cell.group for cell in study.cells})}
        row |= {"data": ", ".join(source_names(study.cells)), "missing": list(missing_sources(study.cells))}
        summaries.append(row | {"hours": _sum(hours)})
    summaries += map(dict, computed_rows())
    if as_json:
        from fedloom.runs.storage.data_record import describe_environment, environment_line

        print_json({"scale": scale, "machine": environment_line(describe_environment()), "tables": summaries})
        return
    console = console_of(as_json)
    for row in summaries:
        absent = f", not here: {', '.join(row['missing'])}" if row["missing"] else ""
        amount = (
            f"{row['cells']:>4} cells {_hours_text(row['hours'])}  " if row["cells"] else f"{'nothing is run':>25}  "
        )
        line = f"{row['name']:<16} {amount}{row['title']} ({row['data']}{absent})".replace(" ()", "")
        print_lines(console, line)
    console.print("hours: of the rows with a finished run in the table's folder below runs/, for all their cells")


def show_plan(
    recipe: Recipe, study: StudyPlan, cells: Sequence[Cell], folder: Path, scale: Scale, as_json: bool
) -> None:
    """Print the rows of a table with their cells, measured hours, how far they are, and what data are missing.

    study: the study that the recipe makes. cells: the chosen cells of the study. folder: folder of the study; nothing
    is written. scale: "full" or "small".
    """
    from fedloom.papers.recipe import missing_sources

    absent, rows = missing_sources(cells), planned_rows(study, cells, folder)
    total, unknown = _sum([row["hours"] for row in rows]), sum(row["hours"] is None for row in rows)
    if as_json:
        overview = {"name": recipe.name, "scale": scale, "says": recipe.scale_text(scale), "rows": rows, "hours": total}
        overview["hours_basis"] = _BASIS
        print_json(overview | {"missing": absent, "open": list(recipe.choices)})
        return
    console = console_of(as_json)
    console.print(f"{recipe.paper.title}, {recipe.table.title}\nscale: {recipe.scale_text(scale)}", markup=False)
    for row in rows:
        line = f"{row['cells']:>3} cells, {row['done']:>3} done {_hours_text(row['hours'])}  {row['name']}"
        print_lines(console, line)
    measured = "no row measured" if total is None else f"{total:,.2f} hours"
    without = f", without {counted(unknown, 'row')} that no run has measured" if unknown and total is not None else ""
    console.print(f"{counted(len(cells), 'cell')}, {measured}{without}", soft_wrap=True)
    print_lines(console, f"hours: {_BASIS}")
    for source, why in absent.items():
        print_lines(console, f"missing: {source}: {why}")


def default_folder(name: str, scale: Scale) -> Path:
    """Return the folder of a table's study where --out names no other."""
    return Path("runs") / f"{name.replace('/', '-')}-{scale}"


def planned_rows(study: StudyPlan, cells: Sequence[Cell], folder: Path) -> list[dict[str, Any]]:
    """Return name, number of `cells`, finished ones and hours of each row of a study in a folder.

    The hours are None for a row without a finished cell.
    """
    from fedloom.runs.storage.run_folder import RunFolder
    from fedloom.runs.studies.study_folder import StudyFolder

    study_folder = StudyFolder(folder)
    study_folder.check(study)
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    rows = []
    for name, members in groups.items():
        done = [cell for cell in members if study_folder.state(cell.folder, cell.config) == "done"]
        summaries = [RunFolder(study_folder.cell(cell.folder)).read_summary() or {} for cell in done]
        seconds = [summary["seconds"]["total"] for summary in summaries]
        hours = len(members) * fmean(seconds) / 3600 if seconds else None
        rows.append({"name": name, "cells": len(members), "done": len(done), "hours": hours})
    return rows


def _sum(hours: Sequence[float | None]) -> float | None:
    measured = [value for value in hours if value is not None]
    return sum(measured) if measured else None


def _hours_text(hours: float | None) -> str:
    return f"{'not measured' if hours is None else f'{hours:,.2f} h':>12}"


def write_paper_comparison(
    recipe: Recipe, folder: Path, scale: Scale, overrides: Sequence[str], allow_mixed: bool = False
) -> None:
    """Write into a study's folder what its finished cells show.

    That is a figure with its rows as CSV, and of a table also ours beside theirs, as Markdown, and what was measured,
    as CSV. recipe: the table or figure. folder: folder of the study. scale: "full" or "small". overrides: the user's
    key=value on top of all cells. allow_mixed: whether cells of different versions of fedloom may be put together; else
    they raise `ConfigError`.
    """
    from fedloom.core.files import write_atomic
    from fedloom.papers.figures import figure_rows
    from fedloom.papers.measurements import measure, measurements_csv
    from fedloom.papers.table_section import as_markdown
    from fedloom.results.report.figures import save
    from fedloom.runs.studies.outcome import done_of, failed_of, outcome
    from fedloom.runs.studies.study_folder import StudyFolder, read

    whole = read(folder)  # which may be larger than what this call ran
    if whole is None:
        return
    ended = outcome(whole, StudyFolder(folder), whole.cells)
    done = done_of(whole, ended, allow_mixed)
    known_names = recipe.table.columns.keys(), recipe.rows.keys()  # those of an earlier version may be gone
    done = {
        (column, row): runs
        for (column, row), runs in done.items()
        if column in known_names[0] and row in known_names[1]
    }
    if not done:
        return
    overrides_beyond_recipe = recipe.changing(overrides, scale)
    changes = [recipe.scale_text(scale)] if scale == "small" else []
    changes += [f"with {' '.join(overrides_beyond_recipe)}"] if overrides_beyond_recipe else []
    changed, kind = ", ".join(changes), recipe.table.kind
    setting = changed or recipe.scale_text(scale)
    save_recipe(folder, recipe, setting)
    rows = [row | {"changed": changed} for row in figure_rows(recipe, done, say)]
    written = save("bars" if kind == "table" else kind, rows, folder, recipe.table.axis)
    say(f"figure: {', '.join(map(str, written))}")
    for text in recipe.not_drawn:
        say(f"not drawn: {text}")
    if kind != "table":
        return
    comparable = scale == "full" and not overrides_beyond_recipe and not recipe.paper.searched
    measurements = measure(recipe, done, changed, comparable)
    write_atomic(folder / "reproduced.md", as_markdown(recipe, measurements, setting, failed_of(whole, ended)))
    write_atomic(folder / VALUES, measurements_csv(measurements))
    say(f"ours beside theirs: {folder / 'reproduced.md'}, {folder / VALUES}")
