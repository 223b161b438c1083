"""Commands for a paper: `figure`, `table`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from click.core import ParameterSource

from fedloom.cli.comparisons import AllowMixed, say_left_out, say_limits
from fedloom.cli.shared import AsJson, Runs, print_json, print_lines, say
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError, printable, short_repr
from fedloom.results.plots.palette import COLUMN, PAGE, check_kind

_WIDTHS = {"column": COLUMN, "page": PAGE}
_NARROWEST, _WIDEST = 2.0, 30.0  # inches


def figure(
    runs: Runs,
    kind: Annotated[str, typer.Argument(help="curves, dots, bars or critical-difference.")],
    out: Annotated[
        Path | None, typer.Option(help="A .pdf, .svg or .png; KIND.pdf in the first folder unless given.")
    ] = None,
    metric: Annotated[
        str, typer.Option(help="A measure of the test data, e.g. auroc; of curves, loss too.")
    ] = "accuracy",
    against: Annotated[str | None, typer.Option(help="For dots: differences from this method, seed by seed.")] = None,
    width: Annotated[
        str | None,
        typer.Option(
            help="column (3.3 inches), page (6.9 inches) or inches; column for one setting, page for several."
        ),
    ] = None,
    note: Annotated[
        bool, typer.Option("--note/--no-note", help="The sentence below the panels that says what bands and lines are.")
    ] = True,
    allow_mixed: AllowMixed = False,
    as_json: AsJson = False,
) -> None:
    """A figure for a paper from finished runs: a panel for each setting, a colour for each method."""
    from dataclasses import replace

    from fedloom.results.plot_values import plot_values
    from fedloom.results.report import check_picture
    from fedloom.results.table import grouped, not_offered_notes
    from fedloom.results.table_notes import run_notes
    from fedloom.runs.studies.outcome import collect

    check_kind(kind)
    inches = None if width is None else _inches(width)
    path = out or runs[0] / f"{kind}.pdf"
    check_picture(path)
    collected = collect(runs, allow_mixed)
    plot = plot_values(collected.results, kind, metric, against)
    from fedloom.results.plots.sheet import save_figure

    drawn = plot if note else replace(plot, note="")
    try:
        save_figure(drawn, path, inches or (COLUMN if len(plot.panels) == 1 else PAGE))
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
    console = console_of(as_json)
    print_lines(console, f"figure: {path}")
    print_lines(console, plot.note)


def table(
    context: typer.Context,
    runs: Runs,
    format: Annotated[str, typer.Option(help="markdown, latex, csv or text.")] = "markdown",
    rows: Annotated[
        str | None, typer.Option(help="Keys that name the rows: method, setting, protocol or any config key.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Keys whose values stand above the columns, e.g. alpha.")] = None,
    cells: Annotated[
        str | None, typer.Option(help="Measures, e.g. accuracy,auroc,worst10,up,down,time,n; accuracy unless given.")
    ] = None,
    units: Annotated[Literal["percent", "share"], typer.Option(help="The unit of shares.")] = "percent",
    interval: Annotated[
        bool, typer.Option("--interval", help="Add the difference from --against with its 95 % interval.")
    ] = False,
    p_value: Annotated[
        bool, typer.Option("--p-value", help="Add the p of that difference, after Holm's correction.")
    ] = False,
    against: Annotated[str, typer.Option(help="The method from which differences are taken.")] = "fedavg",
    caption: Annotated[str, typer.Option(help="The caption in LaTeX; it names measures and keys unless given.")] = "",
    label: Annotated[str, typer.Option(help="The label in LaTeX; that of the first folder unless given.")] = "",
    target: Annotated[
        list[float] | None,
        typer.Option(help="What it took to reach this accuracy, from 0 to 1: rounds, bytes, FLOPs. May come often."),
    ] = None,
    costs: Annotated[
        bool, typer.Option("--costs", help="Time of a local epoch beside FedAvg's, FLOPs and bytes of a run.")
    ] = False,
    fairness: Annotated[
        bool, typer.Option("--fairness", help="Spread of accuracy over clients, and clients that are worse off.")
    ] = False,
    domains: Annotated[
        bool, typer.Option("--domains", help="Accuracy on each domain that runs left out, and the mean over domains.")
    ] = False,
    newcomers: Annotated[
        bool, typer.Option("--newcomers", help="Accuracy on clients that never trained, by how they were served.")
    ] = False,
    allow_mixed: AllowMixed = False,
) -> None:
    """The table of finished runs as text for a paper or a program; with --rows, --columns or --cells a pivot."""
    from fedloom.results.comparison import Comparison
    from fedloom.results.data_table import check_format
    from fedloom.runs.studies.outcome import collect

    pivots = any(option is not None for option in (rows, columns, cells)) or interval or p_value
    own_tables = bool(target) + costs + fairness + domains + newcomers
    names = "--target, --costs, --fairness, --domains and --newcomers"
    if own_tables > 1:
        raise ConfigError(f"{names} are tables of their own: ask for one of them")
    if pivots and own_tables:
        raise ConfigError(
            f"{names} are tables of their own, without --rows, --columns, --cells, --interval and --p-value: leave out "
            "these or those"
        )
    _refuse_ignored(context, pivots, interval or p_value)
    check_format(format)
    collected = collect(runs, allow_mixed)
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
        text = done.pivot(
            rows,
            columns,
            cells or "accuracy",
            format,
            units=units,
            against=against,
            interval=interval,
            p_value=p_value,
            caption=caption,
            label=label or runs[0].resolve().name,
        )
    else:
        text = done.table(format)
    say_left_out(collected.left_out)
    say_limits(runs, collected.results, allow_mixed)
    print(printable(text, keep_lines=True))
    same_runs = done.same_runs() if format == "csv" or not pivots else []  # other pivots say so below
    for note in (*done.not_offered(), *same_runs, *done.run_notes(), *done.tuned()):
        say(note)


def _refuse_ignored(context: typer.Context, pivots: bool, compares: bool) -> None:
    """Raise `ConfigError` for an option that was typed and that this table would ignore."""
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
    """Read a width. Raises `ConfigError` for another word, and for a number that no page has."""
    try:
        inches = _WIDTHS.get(text) or float(text)
    except ValueError:
        inches = 0.0
    if not _NARROWEST <= inches <= _WIDEST:
        raise ConfigError(
            f"--width {short_repr(text)}: need column, page, or inches from {_NARROWEST:g} to {_WIDEST:g}"
        )
    return inches
