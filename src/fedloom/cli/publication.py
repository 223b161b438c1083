"""The commands `figure` and `table`, which draw and print finished runs for a paper, and `reproduce`, which runs a
published table or figure again, and compares our values with the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from click.core import ParameterSource

from fedloom.cli import shared
from fedloom.cli.comparisons import REPRODUCED, VALUES, run_and_report, say_left_out, say_limits
from fedloom.cli.shared import AsJson, Runs, print_json, print_lines, say
from fedloom.core.errors import ConfigError, DataError, check_choice, printable, short_repr
from fedloom.core.files import json_text, write_atomic
from fedloom.core.text import counted, seconds_text
from fedloom.results.plots.palette import COLUMN, PAGE, PLOT_KINDS

if TYPE_CHECKING:
    from fedloom.papers.recipe import Recipe, Scale
    from fedloom.runs.studies.plan import Cell, StudyPlan


_WIDTHS = {"column": COLUMN, "page": PAGE}
_NARROWEST, _WIDEST = 2.0, 30.0  # inches


def figure(
    runs: Runs,
    kind: Annotated[str, typer.Argument(help="curves, times (curves over virtual time) or dots.")],
    out: Path | None = None,
    metric: Annotated[str, typer.Option(help="A measure on test data, e.g. auroc; for curves also loss.")] = "accuracy",
    against: Annotated[str | None, typer.Option(help="For dots: differences from this method, seed by seed.")] = None,
    width: str | None = None,
    note: bool = True,
    evaluation: str = "",
    allow_mixed: bool = False,
    as_json: AsJson = False,
) -> None:
    """Draw a figure for a paper from finished runs: one panel per setting, one colour per method."""
    from dataclasses import replace

    from fedloom.results.plot_values import plot_values
    from fedloom.results.plots.sheet import save_figure
    from fedloom.results.report import check_picture
    from fedloom.results.table import grouped, not_offered_notes
    from fedloom.results.table_notes import run_notes
    from fedloom.runs.studies.outcome import collect

    check_choice("kind", kind, PLOT_KINDS)
    inches = None if width is None else _inches(width)
    path = out or runs[0] / f"{kind}.pdf"
    check_picture(path)
    collected = collect(runs, allow_mixed, evaluation)
    plot = plot_values(collected.results, kind, metric, against)
    try:
        inches = inches or (COLUMN if len(plot.panels) == 1 else PAGE)
        save_figure(plot if note else replace(plot, note=""), path, inches)
    except OSError as error:
        raise ConfigError(f"{path}: the figure cannot be written there ({error.strerror})") from None
    if as_json:
        left_out = [{"folder": str(folder), "why": why} for folder, why in collected.left_out]
        panels = [panel.title for panel in plot.panels]
        print_json({"figure": str(path), "note": plot.note, "panels": panels, "left_out": left_out})
        return
    say_left_out(collected.left_out)
    say_limits(runs, collected.results, allow_mixed)
    for line in (*not_offered_notes(collected.results), *run_notes(grouped(collected.results))):
        say(line)
    print_lines(f"figure: {path}", plot.note)


def table(
    context: typer.Context,
    runs: Runs,
    format: Annotated[str, typer.Option(help="markdown, latex, csv or text.")] = "markdown",
    rows: str | None = None,
    columns: Annotated[str | None, typer.Option(help="Keys whose values head the columns, e.g. alpha.")] = None,
    cells: str | None = None,
    units: Annotated[Literal["percent", "share"], typer.Option(help="The unit of shares.")] = "percent",
    interval: bool = False,
    p_value: Annotated[bool, typer.Option("--p-value", help="Add its p-value, adjusted over the family.")] = False,
    against: Annotated[str, typer.Option(help="The method that others are compared with.")] = "fedavg",
    caption: Annotated[str, typer.Option(help="The caption in LaTeX; by default it names measures and keys.")] = "",
    label: Annotated[str, typer.Option(help="The label in LaTeX; by default the name of the first folder.")] = "",
    target: list[float] | None = None,
    costs: bool = False,
    fairness: bool = False,
    domains: Annotated[bool, typer.Option("--domains", help="Accuracy on each held-out domain, and its mean.")] = False,
    newcomers: bool = False,
    evaluation: str = "",
    allow_mixed: bool = False,
) -> None:
    """Print the table of finished runs for a paper or a program; --rows, --columns and --cells make a pivot."""
    from fedloom.results.comparison import Comparison
    from fedloom.results.data_table import Format
    from fedloom.runs.studies.outcome import collect

    pivots = any(option is not None for option in (rows, columns, cells)) or interval or p_value
    special_tables = bool(target) + costs + fairness + domains + newcomers
    names = "--target, --costs, --fairness, --domains and --newcomers"
    if special_tables > 1:
        raise ConfigError(f"{names} are separate tables: ask for one of them")
    if pivots and special_tables:
        raise ConfigError(
            f"{names} are separate tables, and cannot be combined with --rows, --columns, --cells, --interval or "
            "--p-value: leave out one kind"
        )
    _refuse_ignored(context, pivots, interval or p_value)
    check_choice("format", format, get_args(Format))
    collected = collect(runs, allow_mixed, evaluation)
    done = Comparison(collected.results)
    if target:
        text = done.target_table(target, format)
    elif costs:
        text = done.cost_table(format)
    elif fairness:
        text = done.fairness_table(format) or "no run tests single clients"
    elif domains:
        text = done.domain_table(format) or "no run left a domain out"
    elif newcomers:
        text = done.newcomer_table(format) or "no run held clients out"
    elif pivots:
        label, layout = label or runs[0].resolve().name, (rows, columns, cells or "accuracy", format)
        differences: dict[str, Any] = {"against": against, "interval": interval, "p_value": p_value}
        text = done.pivot(*layout, units=units, caption=caption, label=label, **differences)
    else:
        text = done.table(format)
    say_left_out(collected.left_out)
    say_limits(runs, collected.results, allow_mixed)
    # Not by rich, which would wrap long lines and read brackets as markup.
    print(printable(text, keep_lines=True))
    same_runs = done.same_runs() if format == "csv" or not pivots else []  # other pivots say so below
    for note in (*done.not_offered(), *same_runs, *done.run_notes(), *done.tuned()):
        say(note)


def _refuse_ignored(context: typer.Context, pivots: bool, compares: bool) -> None:
    from fedloom.core.text import listed

    by_name = {name: context.get_parameter_source(name) for name in context.params}
    typed = [name for name, source in by_name.items() if source is ParameterSource.COMMANDLINE]
    if ignored := [f"--{name}" for name in ("units", "caption", "label") if name in typed and not pivots]:
        raise ConfigError(
            f"{listed(ignored)}: only for a table with --rows, --columns, --cells, --interval or --p-value"
        )
    if "against" in typed and not compares:
        raise ConfigError("--against: only with --interval or --p-value, which show the difference")


def _inches(text: str) -> float:
    try:
        inches = _WIDTHS.get(text) or float(text)
    except ValueError:
        inches = 0.0
    if not _NARROWEST <= inches <= _WIDEST:
        raise ConfigError(
            f"--width {short_repr(text)}: need column, page, or inches from {_NARROWEST:g} to {_WIDEST:g}"
        )
    return inches


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table, e.g. feddw/table1; --list names them all.")] = None,
    overrides: shared.Overrides = None,
    list_all: Annotated[bool, typer.Option("--list", help="List all tables with their cells and data.")] = False,
    plan: bool = False,
    scale: Annotated[str, typer.Option(help="full: the paper's setting; small: a stated reduction.")] = "full",
    seeds: Annotated[int | None, typer.Option(min=1, max=10_000, help="How many; by default the recipe's.")] = None,
    out: Path | None = None,
    only: list[str] | None = None,
    reuse: list[Path] | None = None,
    workers: int = 1,
    allow_mixed: bool = False,
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
    recipe = find_recipe(name)
    study = recipe.study(chosen, seeds, load(None, shared.overrides_with_options(overrides)))
    folder = out or Path("runs") / f"{name.replace('/', '-')}-{chosen}"
    cells = study.chosen(only or ())
    if plan:
        _show_plan(recipe, study, cells, folder, chosen, as_json)
        return
    from fedloom.papers.recipe import missing_sources
    from fedloom.runs.storage.folders import stopped_by_full_disk
    from fedloom.runs.studies.outcome import reusable
    from fedloom.runs.studies.outcome import reuse as copy_cells
    from fedloom.runs.studies.run_study import refuse_other_versions
    from fedloom.runs.studies.study_folder import StudyFolder

    study_folder = StudyFolder(folder)
    study_folder.check(study)
    finished = {cell.folder for source_folder in reuse or () for cell in reusable(study_folder, cells, source_folder)}
    finished |= {cell.folder for cell in cells if study_folder.finished(cell.folder)}
    if missing := missing_sources([cell for cell in cells if cell.folder not in finished]):
        raise DataError(f"{'; '.join(missing.values())}. Nothing was run; --only leaves columns out")
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
    from fedloom.papers.recipe import missing_sources, recipes

    summaries: list[dict[str, Any]] = []
    for name, recipe in recipes().items():
        row: dict[str, Any] = {"name": name, "title": f"{recipe.paper.title}, {recipe.table.title}"}
        if recipe.table.why_not_run is not None:
            summaries.append(row | {"cells": 0, "data": "", "missing": [], "facts": recipe.table.why_not_run})
            continue
        study = recipe.study(scale, seeds=1)  # one seed shows all rows and data
        row |= {"cells": recipe.seeds(scale) * len({cell.group for cell in study.cells})}
        sources = dict.fromkeys(cell.config.scenario.source for cell in study.cells)
        summaries.append(row | {"data": ", ".join(sources), "missing": list(missing_sources(study.cells))})
    if as_json:
        print_json({"scale": scale, "tables": summaries})
        return
    for row in summaries:
        absent = f", missing: {', '.join(row['missing'])}" if row["missing"] else ""
        amount = f"{row['cells']:>4} cells    " if row["cells"] else "nothing is run"
        print_lines(f"{row['name']:<16} {amount}  {row['title']} ({row['data']}{absent})".replace(" ()", ""))


def _show_plan(
    recipe: Recipe, study: StudyPlan, cells: Sequence[Cell], folder: Path, scale: Scale, as_json: bool
) -> None:
    from fedloom.papers.recipe import missing_sources
    from fedloom.runs.studies.study_folder import StudyFolder
    from fedloom.runs.studies.tuning import seconds_left

    study_folder = StudyFolder(folder)
    study_folder.check(study)
    rows: dict[str, dict[str, Any]] = {}
    remaining = {cell.folder: cell for cell in cells if study_folder.state(cell.folder, cell.config) != "done"}
    for cell in cells:
        row = rows.setdefault(cell.group, {"name": cell.group, "cells": 0, "done": 0})
        row["cells"] += 1
        row["done"] += cell.folder not in remaining
    seconds = seconds_left(study_folder, [*remaining.values()])
    absent, told = missing_sources(cells), recipe.scale_text(scale)
    if as_json:
        overview = {"name": recipe.name, "scale": scale, "says": told, "rows": list(rows.values())}
        print_json(overview | {"missing": absent, "open": list(recipe.choices), "seconds_left": seconds})
        return
    print_lines(f"{recipe.paper.title}, {recipe.table.title}\nscale: {told}")
    print_lines(*(f"{row['cells']:>3} cells, {row['done']:>3} done  {row['name']}" for row in rows.values()))
    print_lines(counted(len(cells), "cell"), *(f"missing: {source}: {why}" for source, why in absent.items()))
    if seconds:
        print_lines(f"about {seconds_text(seconds)} on one core, judging by the finished runs")


def _write_paper_comparison(
    recipe: Recipe, folder: Path, scale: Scale, overrides: Sequence[str], allow_mixed: bool
) -> None:
    """Write what a study reproduces to its folder, and for a table our values next to the paper's."""
    from fedloom.papers.compared_values import as_markdown
    from fedloom.papers.measurements import measure, measurements_csv
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
    changed = ", ".join(changes)
    setting = changed or recipe.scale_text(scale)
    write_atomic(folder / REPRODUCED, json_text({"name": recipe.name, "setting": setting}))
    if recipe.table.kind != "table":
        say(f"in a copy of fedloom's repository, this draws the figure: python -m benchmarks paper-figures {folder}")
        return
    comparable = scale == "full" and not overrides_beyond_recipe and not recipe.paper.searched
    measurements = measure(recipe, done, changed, comparable)
    write_atomic(folder / "reproduced.md", as_markdown(recipe, measurements, setting, failed_of(whole, ended)))
    write_atomic(folder / VALUES, measurements_csv(measurements))
    say(f"our values next to the paper's: {folder / 'reproduced.md'}, {folder / VALUES}")
