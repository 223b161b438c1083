"""A figure of a paper: small multiples on one scale, one legend above them, and notes below that explain the marks."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.core.files import write_atomic
from fedloom.results.plots.palette import (
    LIGHT,
    Curve,
    Estimate,
    PlotData,
    PlotPanel,
    Ranking,
    Series,
    dash,
    shortened_names,
    tone_name,
    tones_of,
)

_FEW = 6  # curves; with more of them, bands only blur the picture
_LABEL = 7.5  # points
_SMALL = 6.5
_RANK_ROW, _BAR_ROW = 1.0, 0.55  # heights in a critical-difference diagram, in rows of methods
LETTER = 0.052  # inches that one takes in a legend or a label
_FEWEST_LETTERS = 6  # of a name
_Kind = TypeVar("_Kind", Curve, Estimate, Ranking)
Tones = Mapping[str, int]


def draw_panel(axes: Axes, panel: PlotPanel, plot: PlotData, tones: Tones) -> None:
    """Draw one panel of a figure.

    plot: the figure, with the order of its methods and the measure. tones: the tone of each method, as
    `palette.tones_of` returns it.
    """
    _DRAWINGS[plot.kind](axes, panel, plot, tones)


def draw_curves(axes: Axes, panel: PlotPanel, plot: PlotData, tones: Tones) -> None:
    """Draw the means by round as lines, and one sample standard deviation on both sides as bands.

    plot: the figure, whose measure names the axis. tones: the tone of each method.
    """
    curves = _only(panel.series, Curve)
    for curve in curves:
        look: dict[str, Any] = {"color": LIGHT[tone_name(tones[curve.method])]}
        marker = "o" if len(curve.rounds) == 1 else None
        axes.plot(
            curve.rounds,
            curve.mean,
            label=curve.method,
            linewidth=1.2,
            marker=marker,
            markersize=3,
            linestyle=dash(tones[curve.method]),
            **look,
        )
        if curve.std is not None:
            low = [mean - std for mean, std in zip(curve.mean, curve.std, strict=True)]
            high = [mean + std for mean, std in zip(curve.mean, curve.std, strict=True)]
            alpha = 0.16 if len(curves) <= _FEW else 0.07
            axes.fill_between(curve.rounds, low, high, alpha=alpha, linewidth=0, **look)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.set_xlabel("round")
    axes.set_ylabel(plot.quantity)
    axes.margins(x=0.02)
    _dress(axes, "y")


def draw_dots(axes: Axes, panel: PlotPanel, plot: PlotData, tones: Tones) -> None:
    """Draw the means as dots with their intervals, a row for each method; hollow dots have none.

    plot: the figure, whose methods are the rows. tones: the tone of each method.
    """
    for estimate in _only(panel.series, Estimate):
        row = plot.drawn.index(estimate.method)
        tint = LIGHT[tone_name(tones[estimate.method])]
        if estimate.bounds is not None:
            axes.plot(estimate.bounds, (row, row), color=tint, linewidth=1.4, solid_capstyle="butt")
        face = "white" if estimate.hollow else tint
        axes.plot(estimate.mean, row, "o", color=tint, markerfacecolor=face, markersize=4.5, label=estimate.method)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    _name_rows(axes, plot)


def draw_bars(axes: Axes, panel: PlotPanel, plot: PlotData, tones: Tones) -> None:
    """Draw the means as bars from zero on with their bounds, a row for each method, and each value in words.

    plot: the figure, whose methods are the rows. tones: the tone of each method.
    """
    estimates = _only(panel.series, Estimate)
    for estimate in estimates:
        row = plot.drawn.index(estimate.method)
        low, high = estimate.bounds or (estimate.mean, estimate.mean)
        axes.barh(row, estimate.mean, height=0.66, color=LIGHT[tone_name(tones[estimate.method])], alpha=0.85)
        if estimate.bounds is not None:
            axes.plot((low, high), (row, row), color=LIGHT["ink"], linewidth=0.8)
        axes.annotate(
            estimate.text,
            (max(high, estimate.mean), row),
            (3, 0),
            textcoords="offset points",
            va="center",
            fontsize=_SMALL,
            color=LIGHT["ink"],
        )
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
    ends = [end for estimate in estimates for end in (estimate.mean, *(estimate.bounds or ()))]
    lowest, highest = min(0.0, *ends), max(0.0, *ends)
    axes.set_xlim(lowest, highest + 0.4 * (highest - lowest or 1.0))  # room for the words
    _name_rows(axes, plot)


def draw_ranks(axes: Axes, panel: PlotPanel, plot: PlotData, tones: Tones) -> None:
    """Draw mean ranks as Demsar's critical-difference diagram: bars join methods that the test does not tell apart.

    panel: one ranking. tones: the tone of each method.
    """
    (ranking,) = _only(panel.series, Ranking)
    methods = list(ranking.ranks)
    count, half = len(methods), (len(methods) + 1) // 2
    ink, muted = LIGHT["ink"], LIGHT["muted"]
    below = _BAR_ROW * (len(ranking.bars) + 1)
    letters = max(_FEWEST_LETTERS, int(0.28 * _panel_width(axes) / LETTER))
    axes.plot((1, count), (0, 0), color=ink, linewidth=0.8)
    for tick in range(1, count + 1):
        axes.plot((tick, tick), (0, 0.2), color=ink, linewidth=0.8)
        axes.text(tick, 0.35, str(tick), ha="center", va="bottom", fontsize=_SMALL, color=muted)
    for position, (method, name) in enumerate(zip(methods, shortened_names(methods, letters), strict=True)):
        on_left = position < half
        row = position if on_left else count - 1 - position
        depth, rank = -below - _RANK_ROW * row, ranking.ranks[method]
        edge = 0.9 if on_left else count + 0.1
        axes.plot((rank, rank, edge), (0, depth, depth), color=LIGHT[tone_name(tones[method])], linewidth=0.9)
        gap = -0.06 if on_left else 0.06
        side = "right" if on_left else "left"
        label = f"{name} {rank:.2f}" if on_left else f"{rank:.2f} {name}"
        axes.text(edge + gap, depth, label, ha=side, va="center", fontsize=_LABEL, color=ink)
    for number, (low, high) in enumerate(ranking.bars):
        level = -_BAR_ROW * (number + 0.7)
        axes.plot((low - 0.04, high + 0.04), (level, level), color=ink, linewidth=2.4, solid_capstyle="butt")
    axes.plot((1, 1 + ranking.critical), (1.6, 1.6), color=ink, linewidth=0.8, marker="|", markersize=4)
    axes.text(1, 1.8, f"CD = {ranking.critical:.2f}", ha="left", va="bottom", fontsize=_SMALL, color=muted)
    axes.set_ylim(-below - _RANK_ROW * (half - 0.4), 2.6)
    axes.set_axis_off()


_DRAWINGS: dict[str, Callable[[Axes, PlotPanel, PlotData, Tones], None]] = {
    "curves": draw_curves,
    "dots": draw_dots,
    "bars": draw_bars,
    "critical-difference": draw_ranks,
}


def _only(series: Sequence[Series], kind: type[_Kind]) -> list[_Kind]:
    return [values for values in series if isinstance(values, kind)]


def _panel_width(axes: Axes) -> float:
    """Return the inches of the figure's width that one panel has."""
    spec = axes.get_gridspec()
    return _figure_width(axes) / (1 if spec is None else spec.ncols)


def _figure_width(axes: Axes) -> float:
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure.get_figwidth()


def _name_rows(axes: Axes, plot: PlotData) -> None:
    letters = max(_FEWEST_LETTERS, int(0.4 * _figure_width(axes) / LETTER))
    axes.set_yticks(range(len(plot.drawn)), shortened_names(plot.drawn, letters))
    axes.set_ylim(len(plot.drawn) - 0.4, -0.6)
    axes.set_xlabel(plot.quantity)
    _dress(axes, "x")


def _dress(axes: Axes, grid: Any) -> None:
    """Ticks, labels and grid in the palette's colours, without a frame. grid: the axis whose ticks have lines."""
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(which="both", length=0, labelcolor=LIGHT["muted"], labelsize=_SMALL, pad=3)
    axes.tick_params(axis="y" if grid == "x" else "x", labelcolor=LIGHT["ink"] if grid == "x" else LIGHT["muted"])
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_fontsize(_LABEL)
        label.set_color(LIGHT["muted"])
    axes.grid(axis=grid, color=LIGHT["line"], linewidth=0.6)
    axes.set_axisbelow(True)


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

    plot: the values to draw. path: the file, whose suffix tells its format. width: width of the figure in inches.
    """
    figure, stream, ending = Figure(), io.BytesIO(), path.suffix.lower()[1:]
    draw_figure(plot, figure, width)
    with _plain_style():
        # Without a date, the same values give the same bytes.
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
    """Return how many letters of a name fit to the right of its line."""
    return max(8, int((width - 0.6) / LETTER))


def _draw_legend(figure: Figure, grid: list[Axes], plot: PlotData, columns: int) -> None:
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    methods = plot.drawn
    # Matplotlib fills a legend column by column, and people read it row by row.
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
    margin = 0.02 * (greatest - least)  # the frame would cut a dot at the edge in half
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
