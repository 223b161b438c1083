"""A figure of a paper: small multiples on one scale, one legend above them, and notes below that explain the marks."""

import textwrap
from math import ceil
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.core.files import write_atomic
from fedloom.results.plots import drawing, palette

_FEW = 6  # curves; with more of them, bands only blur the picture
_PANEL = 2.1  # inches, the least width of a panel
_TITLE, _NOTE = 8.0, 6.5  # points
_LETTER = 0.052  # inches that one takes in a legend or a label
_FEWEST_LETTERS = 6  # of a name
_SETTINGS = {"svg.fonttype": "path"}  # letters as outlines need no font


def draw_figure(plot: palette.PlotData, figure: Figure, width: float) -> list[Axes]:
    """Draw on an empty figure of this width in inches; the height follows from the panels. Returns their Axes."""
    with drawing.in_light_theme(_SETTINGS) as page:
        # As even as the width allows.
        rows = ceil(len(plot.panels) / max(1, int(width / _PANEL)))
        columns = ceil(len(plot.panels) / rows)
        legend = _legend_columns(plot, width) if plot.kind == "curves" else 0
        note = textwrap.wrap(plot.note, max(20, int(width / 0.048)))
        above = 0.1 + 0.16 * ceil(len(plot.drawn) / legend) if legend else 0.0
        of_panel = max(1.6, 0.7 * width / columns) if plot.kind == "curves" else 0.62 + 0.17 * len(plot.drawn)
        height = rows * of_panel + above + 0.13 * len(note)
        figure.set_size_inches(width, height)
        figure.set_layout_engine("constrained", w_pad=0.03, h_pad=0.03)
        figure.set_facecolor(page)
        shared_scale = plot.kind != "curves"
        share_y: Any = "row" if shared_scale else "all"
        grid = list(figure.subplots(rows, columns, squeeze=False, sharex=shared_scale, sharey=share_y).flat)
        for axes, panel in zip(grid, plot.panels, strict=False):
            _draw_panel(axes, panel, plot, width)
            title = "\n".join(textwrap.wrap(panel.title, max(10, int(0.8 * width / columns / _LETTER))))
            axes.set_title(title, loc="left", fontsize=_TITLE, color=drawing.color("ink"), pad=4)
        _label_outer(grid[: len(plot.panels)], columns, plot)
        _cut_to_range(grid[0], plot)
        for axes in grid[len(plot.panels) :]:
            axes.remove()
        if legend:
            _draw_legend(figure, grid, plot, legend)
        if note:
            figure.supxlabel("\n".join(note), x=0.01, ha="left", fontsize=_NOTE, color=drawing.color("muted"))
    return grid[: len(plot.panels)]


def save_figure(plot: palette.PlotData, path: Path, width: float) -> None:
    """Write the figure of a `plot` at a width in inches to a .pdf, .svg or .png `path`; equal plots, equal bytes."""
    figure = Figure()
    draw_figure(plot, figure, width)
    with drawing.in_light_theme(_SETTINGS):
        write_atomic(path, drawing.picture(figure, path.suffix.lower()[1:], dpi=300))


def _draw_panel(axes: Axes, panel: palette.PlotPanel, plot: palette.PlotData, width: float) -> None:
    for series in panel.series:
        match series:
            case palette.Curve():
                mark = "o" if len(series.rounds) == 1 else None
                band = 0.16 if len(panel.series) <= _FEW else 0.07
                drawing.draw_curve(axes, series, drawing.PAPER, band, label=series.method, marker=mark, markersize=3)
            case palette.Estimate():
                drawing.draw_estimate(axes, series, plot.drawn.index(series.method), drawing.PAPER)
    if plot.kind == "curves":
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.margins(x=0.02)
        drawing.dress(axes, drawing.PAPER, plot.over, plot.quantity)
        return
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    letters = max(_FEWEST_LETTERS, int(0.4 * width / _LETTER))
    axes.set_yticks(range(len(plot.drawn)), palette.shortened_names(plot.drawn, letters))
    axes.set_ylim(len(plot.drawn) - 0.4, -0.6)
    drawing.dress(axes, drawing.PAPER, plot.quantity, "", grid="x")
    axes.tick_params(axis="y", labelcolor=drawing.color("ink"))


def _legend_letters(width: float) -> int:
    return max(8, int((width - 0.6) / _LETTER))


def _legend_columns(plot: palette.PlotData, width: float) -> int:
    widest = 0.42 + _LETTER * min(max(map(len, plot.drawn), default=0), _legend_letters(width))
    return max(1, min(len(plot.drawn), int(width / widest)))


def _draw_legend(figure: Figure, grid: list[Axes], plot: palette.PlotData, columns: int) -> None:
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    # Matplotlib fills a legend column by column, and people read it row by row.
    methods = [method for column in range(columns) for method in plot.drawn[column::columns]]
    names = palette.shortened_names(methods, _legend_letters(figure.get_figwidth()))
    look: dict[str, Any] = {"frameon": False, "fontsize": 7, "labelcolor": drawing.color("ink"), "handlelength": 1.6}
    look |= {"columnspacing": 1.2, "borderpad": 0.1, "labelspacing": 0.3}
    figure.legend([handles[method] for method in methods], names, loc="outside upper left", ncols=columns, **look)


def _cut_to_range(axes: Axes, plot: palette.PlotData) -> None:
    """Cut the shared scale of a measure to its range: bands and intervals may leave it, no value can."""
    if plot.bounded is None:
        return
    least, greatest = plot.bounded
    margin = 0.02 * (greatest - least)  # the frame would cut a dot at the edge in half
    low, high = axes.get_ylim() if plot.kind == "curves" else axes.get_xlim()
    limits = max(low, least - margin), min(high, greatest + margin)
    axes.set(**{"ylim" if plot.kind == "curves" else "xlim": limits})


def _label_outer(grid: list[Axes], columns: int, plot: palette.PlotData) -> None:
    """Leave the name of a shared axis to the panels at the edge."""
    for number, axes in enumerate(grid):
        if number % columns:
            axes.set_ylabel("")
            axes.tick_params(labelleft=False)
        inner = number + columns < len(grid)
        if inner:
            axes.set_xlabel("")
        axes.tick_params(labelbottom=not inner or plot.kind == "curves")  # rounds may differ between settings
