"""The commands `figure` and `table`, which draw and print finished runs for a paper."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from click.core import ParameterSource

from fedloom.cli.comparisons import say_left_out, say_limits
from fedloom.cli.shared import AllowMixed, AsJson, EvaluationName, Runs, print_json, print_lines, say
from fedloom.core.errors import ConfigError, check_choice, printable, short_repr
from fedloom.results.plots.palette import COLUMN, PAGE, PLOT_KINDS

_WIDTHS = {"column": COLUMN, "page": PAGE}
_NARROWEST, _WIDEST = 2.0, 30.0  # inches


def figure(
    runs: Runs,
    kind: Annotated[str, typer.Argument(help="curves or dots.")],
    out: Annotated[
        Path | None, typer.Option(help="A .pdf, .svg or .png; by default KIND.pdf in the first folder.")
    ] = None,
    metric: Annotated[str, typer.Option(help="A measure on test data, e.g. auroc; for curves also loss.")] = "accuracy",
    against: Annotated[str | None, typer.Option(help="For dots: differences from this method, seed by seed.")] = None,
    width: Annotated[
        str | None,
        typer.Option(help="column (3.3 inches), page (6.9 inches) or inches; by default what fits the settings."),
    ] = None,
    note: Annotated[
        bool, typer.Option("--note/--no-note", help="Explain bands and lines in a sentence below the panels.")
    ] = True,
    evaluation: EvaluationName = "",
    allow_mixed: AllowMixed = False,
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
    rows: Annotated[
        str | None, typer.Option(help="Keys that name the rows: method, setting, protocol or any config key.")
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Keys whose values head the columns, e.g. alpha.")] = None,
    cells: Annotated[
        str | None, typer.Option(help="Measures, e.g. accuracy,auroc,worst10,up,down,time,n; by default accuracy.")
    ] = None,
    units: Annotated[Literal["percent", "share"], typer.Option(help="The unit of shares.")] = "percent",
    interval: Annotated[
        bool, typer.Option("--interval", help="Add the difference from --against with its 95 % interval.")
    ] = False,
    p_value: Annotated[bool, typer.Option("--p-value", help="Add its p-value, adjusted over the family.")] = False,
    against: Annotated[str, typer.Option(help="The method that others are compared with.")] = "fedavg",
    caption: Annotated[str, typer.Option(help="The caption in LaTeX; by default it names measures and keys.")] = "",
    label: Annotated[str, typer.Option(help="The label in LaTeX; by default the name of the first folder.")] = "",
    target: Annotated[
        list[float] | None,
        typer.Option(help="Rounds, bytes and FLOPs to reach this accuracy, from 0 to 1; may be repeated."),
    ] = None,
    costs: Annotated[
        bool, typer.Option("--costs", help="Time of a local epoch relative to FedAvg's, FLOPs and bytes of a run.")
    ] = False,
    fairness: Annotated[
        bool, typer.Option("--fairness", help="Spread of accuracy over clients, and clients that are worse off.")
    ] = False,
    domains: Annotated[bool, typer.Option("--domains", help="Accuracy on each held-out domain, and its mean.")] = False,
    newcomers: Annotated[
        bool, typer.Option("--newcomers", help="Accuracy on clients that never trained, by how they were served.")
    ] = False,
    evaluation: EvaluationName = "",
    allow_mixed: AllowMixed = False,
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
