"""The command `reproduce`, which runs a published table or figure again, and compares our values with the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedloom.cli import shared
from fedloom.cli.comparisons import VALUES, Only, Plan, Workers, run_and_report, save_recipe
from fedloom.cli.shared import print_json, print_lines, say
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError
from fedloom.core.files import json_text, write_atomic
from fedloom.core.text import counted

if TYPE_CHECKING:
    from fedloom.papers.recipe import Recipe, Scale
    from fedloom.runs.studies.plan import Cell, StudyPlan

_BASIS = "for all cells of a row, judging by the finished ones in this folder"


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table, e.g. feddw/table1; --list names them all.")] = None,
    overrides: shared.Overrides = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="List all tables with their cells, data and measured hours.")
    ] = False,
    plan: Plan = False,
    scale: Annotated[str, typer.Option(help="full: the paper's setting; small: a stated reduction.")] = "full",
    seeds: Annotated[int | None, typer.Option(min=1, max=10_000, help="How many; by default the recipe's.")] = None,
    out: shared.Folder = None,
    only: Only = None,
    reuse: Annotated[
        list[Path] | None, typer.Option(help="Copy the finished cells of another table's or figure's folder.")
    ] = None,
    workers: Workers = 1,
    allow_mixed: shared.AllowMixed = False,
    quiet: shared.Quiet = False,
    as_json: shared.AsJson = False,
) -> None:
    """Run a published table or figure again, and compare our values with the paper's."""
    from fedloom.papers.recipe import find_recipe
    from fedloom.runs.config.run_config import load

    if scale not in ("full", "small"):
        raise ConfigError(f"--scale {scale!r}: need full or small")
    chosen: Scale = "full" if scale == "full" else "small"
    if list_all or name is None:
        if not list_all:
            raise ConfigError("name a table, e.g. feddw/table1, or ask for all with --list")
        _show_tables(chosen, as_json)
        return
    if name == _KERNELS_FIGURE:
        given: dict[str, object] = {
            "key=value": overrides,
            "--plan": plan,
            "--scale small": chosen == "small",
            "--only": only,
        }
        given |= {"--reuse": reuse, "--workers": workers > 1}
        if unusable := [option for option, value in given.items() if value]:
            raise ConfigError(f"{name} is computed without runs, so {', '.join(unusable)} cannot apply; leave it out")
        _compute_kernels(out or Path("runs") / name.replace("/", "-"), seeds or _DRAWS, as_json)
        return
    recipe = find_recipe(name)
    study = recipe.study(chosen, seeds, load(None, shared.overrides_with_options(overrides)))
    folder = out or _default_folder(name, chosen)
    cells = study.chosen(only or ())
    if plan:
        _show_plan(recipe, study, cells, folder, chosen, as_json)
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
    # Figures of models read the data again, also for finished cells.
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
            after_cells=lambda: _write_paper_comparison(recipe, folder, chosen, overrides or (), allow_mixed),
        )


def _show_tables(scale: Scale, as_json: bool) -> None:
    """Print every table with its cells, the data it needs, and the hours that its finished rows took in runs/."""
    from fedloom.papers.recipe import missing_sources, recipes

    summaries: list[dict[str, Any]] = []
    for name, recipe in recipes().items():
        row: dict[str, Any] = {"name": name, "title": f"{recipe.paper.title}, {recipe.table.title}"}
        if recipe.table.why_not_run is not None:
            nothing = {"cells": 0, "data": "", "missing": [], "hours": None, "facts": recipe.table.why_not_run}
            summaries.append(row | nothing)
            continue
        folder = _default_folder(name, scale)
        # One seed shows all rows and data; only the hours of finished runs need the cells of every seed.
        study = recipe.study(scale, seeds=None if folder.exists() else 1)
        hours = [planned["hours"] for planned in _planned_rows(study, study.cells, folder)] if folder.exists() else []
        row |= {"cells": recipe.seeds(scale) * len({cell.group for cell in study.cells})}
        sources = dict.fromkeys(cell.config.scenario.source for cell in study.cells)
        row |= {"data": ", ".join(sources), "missing": list(missing_sources(study.cells))}
        summaries.append(row | {"hours": _sum(hours)})
    facts = "computed directly in some seconds, without runs"
    computed = {"cells": 0, "data": "", "missing": [], "hours": 0.002, "facts": facts}
    summaries.append({"name": _KERNELS_FIGURE, "title": _KERNELS_TITLE} | computed)
    if as_json:
        from fedloom.runs.storage.data_record import describe_environment, environment_line

        print_json({"scale": scale, "machine": environment_line(describe_environment()), "tables": summaries})
        return
    for row in summaries:
        absent = f", missing: {', '.join(row['missing'])}" if row["missing"] else ""
        amount = (
            f"{row['cells']:>4} cells {_hours_text(row['hours'])}  " if row["cells"] else f"{'nothing is run':>25}  "
        )
        line = f"{row['name']:<16} {amount}{row['title']} ({row['data']}{absent})".replace(" ()", "")
        print_lines(line)
    print_lines("hours: for all cells of the rows that have a finished run in the table's folder in runs/")


def _show_plan(
    recipe: Recipe, study: StudyPlan, cells: Sequence[Cell], folder: Path, scale: Scale, as_json: bool
) -> None:
    """Print the rows of a table with their cells, finished cells, measured hours, and missing data."""
    from fedloom.papers.recipe import missing_sources

    absent, rows = missing_sources(cells), _planned_rows(study, cells, folder)
    total, unknown = _sum([row["hours"] for row in rows]), sum(row["hours"] is None for row in rows)
    if as_json:
        overview = {"name": recipe.name, "scale": scale, "says": recipe.scale_text(scale), "rows": rows, "hours": total}
        overview["hours_basis"] = _BASIS
        print_json(overview | {"missing": absent, "open": list(recipe.choices)})
        return
    print_lines(f"{recipe.paper.title}, {recipe.table.title}\nscale: {recipe.scale_text(scale)}")
    for row in rows:
        print_lines(f"{row['cells']:>3} cells, {row['done']:>3} done {_hours_text(row['hours'])}  {row['name']}")
    measured = "no row measured" if total is None else f"{total:,.2f} hours"
    without = f", without {counted(unknown, 'row')} that no run has measured" if unknown and total is not None else ""
    print_lines(f"{counted(len(cells), 'cell')}, {measured}{without}", f"hours: {_BASIS}")
    print_lines(*(f"missing: {source}: {why}" for source, why in absent.items()))


def _default_folder(name: str, scale: Scale) -> Path:
    return Path("runs") / f"{name.replace('/', '-')}-{scale}"


def _planned_rows(study: StudyPlan, cells: Sequence[Cell], folder: Path) -> list[dict[str, Any]]:
    """Return name, number of cells, finished cells and hours (None if unknown) of each row of a study."""
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


def _write_paper_comparison(
    recipe: Recipe, folder: Path, scale: Scale, overrides: Sequence[str], allow_mixed: bool
) -> None:
    """Write the results of a study's finished cells to its folder.

    A figure comes with its rows as CSV; a table also with the comparison as Markdown, and the measured values as CSV.
    """
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
    columns, rows = recipe.table.columns, recipe.rows  # which may lack those of an earlier version
    done = {key: runs for key, runs in done.items() if key[0] in columns and key[1] in rows}
    if not done:
        return
    overrides_beyond_recipe = recipe.changing(overrides, scale)
    changes = [recipe.scale_text(scale)] if scale == "small" else []
    changes += [f"with {' '.join(overrides_beyond_recipe)}"] if overrides_beyond_recipe else []
    changed, kind = ", ".join(changes), recipe.table.kind
    setting = changed or recipe.scale_text(scale)
    save_recipe(folder, recipe, setting)
    drawn = [row | {"changed": changed} for row in figure_rows(recipe, done, say)]
    written = save("bars" if kind == "table" else kind, drawn, folder, recipe.table.axis)
    say(f"figure: {', '.join(map(str, written))}")
    for text in recipe.not_drawn:
        say(f"not drawn: {text}")
    if kind != "table":
        return
    comparable = scale == "full" and not overrides_beyond_recipe and not recipe.paper.searched
    measurements = measure(recipe, done, changed, comparable)
    write_atomic(folder / "reproduced.md", as_markdown(recipe, measurements, setting, failed_of(whole, ended)))
    write_atomic(folder / VALUES, measurements_csv(measurements))
    say(f"our values next to the paper's: {folder / 'reproduced.md'}, {folder / VALUES}")


_KERNELS_FIGURE = "fedco2/ntk"
_KERNELS_TITLE = "Fed-CO2, Section 4 and Theorem 4.3: tangent kernels and residuals"
_DRAWS, _TRAINED = 50, 5  # random problems as in the project's specification; training nets takes longer
_KERNELS = {
    "online": "V online (FedBN)",
    "offline": "V offline",
    "joint": "V joint, with 1/2 as printed",
    "quarter": "V joint, with 1/4 by the chain rule",
    "full_online": "Lambda online",
    "full_joint": "Lambda joint, with 1/2",
}


def _compute_kernels(folder: Path, draws: int, as_json: bool) -> None:
    """Compute the eigenvalues of Fed-CO2's kernels and the residuals of training, and write them to a folder."""
    from fedloom.cli.terminal import print_grid
    from fedloom.papers.tangent_kernels import CAVEATS, eigenvalue_rows, residual_rows
    from fedloom.results.report.figures import save

    say(f"eigenvalues of {draws} random problems")
    rows, violations = eigenvalue_rows(draws)
    residuals = residual_rows(min(draws, _TRAINED), progress=say)
    above = sum(row["residual"] > row["bound"] * (1 + 1e-9) for row in residuals)
    violations = {**violations, "steps whose residual is above the bound of Corollary C.2": above}
    folder.mkdir(parents=True, exist_ok=True)
    values = {"kernels": rows, "violations": violations, "draws": draws, "caveats": list(CAVEATS)}
    write_atomic(folder / "values.json", json_text(values, indent=1))
    written = [folder / "values.json", *save("residuals", residuals, folder)]
    if as_json:
        print_json(values)
        return
    print_grid(
        console_of(False),
        ("kernel", "smallest eigenvalue", "condition number (median)"),
        [(_KERNELS[row["kernel"]], _eigenvalue_text(row), f"{row['condition_number_median']:.3g}") for row in rows],
    )
    trained = len({row["seed"] for row in residuals})
    for what, count in violations.items():
        of = f"{len(residuals)} of {trained} problems" if what.startswith("steps") else f"{draws} draws"
        print_lines(f"  {what}: {count} of {of}")
    print_lines(*(f"  note: {caveat}" for caveat in CAVEATS))
    say(f"written: {', '.join(map(str, written))}")


def _eigenvalue_text(row: Mapping[str, Any]) -> str:
    error = row["standard_error"]
    return f"{row['smallest_eigenvalue']:.4f}" + ("" if error is None else f" ± {error:.4f} (standard error)")
