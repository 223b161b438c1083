"""Commands for a paper: `figure`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedloom.commands.comparisons import AllowMixed, say_left_out, say_limits
from fedloom.commands.shared import AsJson, Runs, print_json
from fedloom.core.console import console_of
from fedloom.core.errors import ConfigError, short_repr
from fedloom.plots.plot_data import COLUMN, PAGE, check_kind

_WIDTHS = {"column": COLUMN, "page": PAGE}
_NARROWEST, _WIDEST = 2.0, 30.0  # inches


def figure(
    runs: Runs,
    kind: Annotated[str, typer.Argument(help="curves, dots, bars or critical-difference.")],
    out: Annotated[
        Path | None, typer.Option(help="A .pdf, .svg or .png; KIND.pdf in the first folder unless given.")
    ] = None,
    metric: Annotated[str, typer.Option(help="A measure of the test data, e.g. auroc or loss.")] = "accuracy",
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

    from fedloom.report import check_picture
    from fedloom.results.plot_values import plot_values
    from fedloom.studies.collect import collect

    check_kind(kind)
    inches = None if width is None else _inches(width)
    path = out or runs[0] / f"{kind}.pdf"
    check_picture(path)
    collected = collect(runs, allow_mixed)
    plot = plot_values(collected.results, kind, metric)
    from fedloom.plots.sheet import save_figure

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
    console = console_of(as_json)
    console.print(f"figure: {path}", markup=False, soft_wrap=True)
    console.print(plot.note, markup=False, soft_wrap=True)


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
