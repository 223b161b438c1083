"""A whole figure: small multiples on one scale, one legend above them, and a note below that explains the marks."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedloom.core.files import write_atomic
from fedloom.results.plots.drawings import LETTER, draw_panel
from fedloom.results.plots.names import shortened_names
from fedloom.results.plots.palette import LIGHT, tones_of
from fedloom.results.plots.plot_data import PlotData, Ranking

_PANEL = 2.1  # inches, the least width of a panel
_TITLE = 8  # points
_NOTE = 6.5  # points
_RC: dict[Any, Any] = {  # Any: matplotlib spells its keys as literals
    "pdf.fonttype": 42,  # whole TrueType fonts, which journals ask for
    "svg.fonttype": "path",
    "svg.hashsalt": "fedloom",
    "text.parse_math": False,  # a `$` in a name is no formula
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
}


def draw_figure(plot: PlotData, figure: Figure, width: float) -> list[Axes]:
    """Draw on an empty figure of this width in inches; the height follows from the panels. Returns their Axes."""
    with _plain_style():
        columns, rows = _grid(plot, width)
        legend = _legend_columns(plot, width) if plot.kind == "curves" else 0
        note = textwrap.wrap(plot.note, max(20, int(width / 0.048)))
        above = 0.1 + 0.16 * ceil(len(plot.drawn) / legend) if legend else 0.0
        height = rows * _panel_height(plot, width / columns) + above + 0.13 * len(note)
        figure.set_size_inches(width, height)
        figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03)
        figure.set_facecolor("white")
        shared_scale = plot.kind in ("dots", "bars")
        share_y: Any = "row" if shared_scale else plot.kind == "curves"
        grid = list(figure.subplots(rows, columns, squeeze=False, sharex=shared_scale, sharey=share_y).flat)
        tones = tones_of(plot.methods, plot.baseline)
        for axes, panel in zip(grid, plot.panels, strict=False):
            draw_panel(axes, panel, plot, tones)
            title = "\n".join(textwrap.wrap(panel.title, max(10, int(0.8 * width / columns / LETTER))))
            axes.set_title(title, loc="left", fontsize=_TITLE, color=LIGHT["ink"], pad=4 if axes.axison else 0)
        _label_outer(grid[: len(plot.panels)], columns, plot)
        _cut_to_range(grid[0], plot)
        for axes in grid[len(plot.panels) :]:
            axes.remove()
        if legend:
            _draw_legend(figure, grid, plot, legend)
        if note:
            figure.supxlabel("\n".join(note), x=0.01, ha="left", fontsize=_NOTE, color=LIGHT["muted"])
    return grid[: len(plot.panels)]


def save_figure(plot: PlotData, path: Path, width: float) -> None:
    """Write a figure to a .pdf, .svg or .png, whole or not at all; the same values give the same bytes.

    Raises `OSError` if the file cannot be written.

    Args:
        plot: the values to draw.
        path: the file, whose suffix tells its format.
        width: width of the figure in inches.
    """
    figure, stream, ending = Figure(), io.BytesIO(), path.suffix.lower()[1:]
    draw_figure(plot, figure, width)
    with _plain_style():
        dated = {"pdf": "CreationDate", "svg": "Date"}.get(ending)
        figure.savefig(stream, format=ending, dpi=300, metadata={dated: None} if dated else None)
    write_atomic(path, stream.getvalue())


@contextmanager
def _plain_style() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.rcParams.update({key: matplotlib.rcParamsDefault[key] for key in _STYLE_KEYS})
        matplotlib.rcParams.update(_RC)
        yield


_STYLE_KEYS: list[Any] = [
    key
    for key in matplotlib.rcParamsDefault
    if key.partition(".")[0] in ("axes", "xtick", "ytick", "lines", "font", "legend", "text", "patch", "savefig")
]


def _grid(plot: PlotData, width: float) -> tuple[int, int]:
    """Return columns and rows of panels, as even as the width allows."""
    count = len(plot.panels)
    least = 3.0 if plot.kind == "critical-difference" else _PANEL
    most = max(1, int(width / least))
    rows = ceil(count / most)
    return ceil(count / rows), rows


def _panel_height(plot: PlotData, width: float) -> float:
    match plot.kind:
        case "curves":
            return max(1.6, 0.7 * width)
        case "critical-difference":
            rankings = [series for panel in plot.panels for series in panel.series if isinstance(series, Ranking)]
            return 0.65 + max(0.17 * (len(ranking.ranks) + 1) // 2 + 0.1 * len(ranking.bars) for ranking in rankings)
        case _:
            return 0.62 + 0.17 * len(plot.drawn)


def _legend_columns(plot: PlotData, width: float) -> int:
    methods = plot.drawn
    widest = 0.42 + LETTER * min(max(map(len, methods), default=0), _legend_letters(width))
    return max(1, min(len(methods), int(width / widest)))


def _legend_letters(width: float) -> int:
    """Return how many letters of a name fit beside its line."""
    return max(8, int((width - 0.6) / LETTER))


def _draw_legend(figure: Figure, grid: list[Axes], plot: PlotData, columns: int) -> None:
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    methods = plot.drawn
    methods = [method for column in range(columns) for method in methods[column::columns]]  # in order row by row
    figure.legend(
        [handles[method] for method in methods],
        shortened_names(methods, _legend_letters(figure.get_figwidth())),
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        fontsize=7,
        labelcolor=LIGHT["ink"],
        handlelength=1.6,
        columnspacing=1.2,
        borderpad=0.1,
        labelspacing=0.3,
    )


def _cut_to_range(axes: Axes, plot: PlotData) -> None:
    """Cut the shared scale of a measure to its range: bands and intervals may leave it, no value can."""
    if plot.bounded is None:
        return
    least, greatest = plot.bounded
    margin = 0.02 * (greatest - least)  # so that a dot at the edge is whole
    match plot.kind:
        case "curves":
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, least - margin), min(high, greatest + margin))
        case "dots":
            low, high = axes.get_xlim()
            axes.set_xlim(max(low, least - margin), min(high, greatest + margin))


def _label_outer(grid: list[Axes], columns: int, plot: PlotData) -> None:
    """Leave the name of a shared axis to the panels at the edge."""
    if plot.kind == "critical-difference":
        return
    for number, axes in enumerate(grid):
        if number % columns:
            axes.set_ylabel("")
            axes.tick_params(labelleft=False)
        if number + columns < len(grid):
            axes.set_xlabel("")
            axes.tick_params(labelbottom=plot.kind == "curves")  # rounds may differ between settings
        else:
            axes.tick_params(labelbottom=True)
