"""Each kind of figure on matplotlib Axes, in the colours of the palette."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from fedloom.results.plots.names import shortened_names
from fedloom.results.plots.palette import LIGHT, dash, tone_name
from fedloom.results.plots.plot_data import Curve, Estimate, PlotData, PlotPanel, Ranking, Series

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

    Args:
        axes: the axes to draw on.
        panel: the values of the panel.
        plot: the figure, with the order of its methods and the measure.
        tones: the tone of each method, as `palette.tones_of` returns it.
    """
    _DRAWINGS[plot.kind](axes, panel, plot, tones)


def draw_curves(axes: Axes, panel: PlotPanel, plot: PlotData, tones: Tones) -> None:
    """Draw the means by round as lines, and one sample standard deviation on both sides as bands.

    Args:
        axes: the axes to draw on.
        panel: curves.
        plot: the figure, whose measure names the axis.
        tones: the tone of each method.
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

    Args:
        axes: the axes to draw on.
        panel: estimates.
        plot: the figure, whose methods are the rows.
        tones: the tone of each method.
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

    Args:
        axes: the axes to draw on.
        panel: estimates.
        plot: the figure, whose methods are the rows.
        tones: the tone of each method.
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

    Args:
        axes: the axes to draw on.
        panel: one ranking.
        plot: the figure.
        tones: the tone of each method.
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
