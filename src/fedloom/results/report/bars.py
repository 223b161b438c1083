"""Rows of bars and rows of dots; each row is named above itself, so that long names fit a phone."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter

from fedloom.results.plots.names import shortened_names
from fedloom.results.plots.palette import tone_name
from fedloom.results.report.curves import CHARACTER, TEXT, place
from fedloom.results.report.measures import Bar, Dots
from fedloom.results.report.svg import color, new_figure

WIDTH = 390.0  # CSS pixels at natural size
_ROW, _BAR = 46.0, 13.0
_DOT_ROW, _DOT_BAND = 62.0, 26.0
_MOST_DOTS = 300  # per row; of more, evenly spaced quantiles are drawn


def draw_bars(bars: Sequence[Bar]) -> Figure:
    """Stacked bars on one scale, which begins at zero; the parts take the colours p0, p1, ..."""
    height = _ROW * len(bars)
    figure = new_figure(WIDTH, height)
    axes = place(figure, 0, 0, 0, 0)
    axes.set_axis_off()
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(height, 0)
    largest = max((sum(bar.parts) for bar in bars), default=0.0) or 1.0
    letters = WIDTH / CHARACTER - 1 - max((len(bar.total) for bar in bars), default=0)
    names = shortened_names([bar.label for bar in bars], letters)
    for row, (bar, name) in enumerate(zip(bars, names, strict=True)):
        top = row * _ROW
        axes.text(0, top + 18, name, color=color("ink"), fontsize=TEXT, va="baseline")
        axes.text(WIDTH, top + 18, bar.total, color=color("ink"), fontsize=TEXT, va="baseline", ha="right")
        start = 0.0
        for k, part in enumerate(bar.parts):
            width = WIDTH * part / largest
            axes.add_patch(Rectangle((start, top + 25), width, _BAR, color=color(f"p{k}"), linewidth=0))
            start += width
    return figure


def draw_dots(rows: Sequence[Dots], width: float) -> Figure:
    """One dot per client (and seed), sorted from the lowest at the bottom to the highest at the top of its row, on an
    axis from 0 to 100 %, with the median as a line; width in CSS pixels."""
    height = _DOT_ROW * len(rows) + 44
    figure = new_figure(width, height)
    axes = place(figure, 8, 0, 22, 44)
    axes.set_xlabel("test accuracy", color=color("muted"), fontsize=TEXT, labelpad=5)
    axes.set_xlim(0, 100)
    axes.set_ylim(_DOT_ROW * len(rows), 0)
    axes.xaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    axes.set_yticks([])
    summaries = [f"median {100 * median(dots.values):.1f} · lowest {100 * min(dots.values):.1f}" for dots in rows]
    letters = (width - 30) / CHARACTER - 1 - max(map(len, summaries))
    names = shortened_names([dots.label for dots in rows], letters)
    for row, (dots, name, summary) in enumerate(zip(rows, names, summaries, strict=True)):
        top, tone = row * _DOT_ROW, color(tone_name(dots.tone))
        values = [100 * value for value in _thinned(sorted(dots.values))]
        heights = [top + 28 + _DOT_BAND * (1 - k / max(1, len(values) - 1)) for k in range(len(values))]
        for tick in (0, 25, 50, 75, 100):
            axes.plot([tick, tick], [top + 25, top + 57], color=color("line"), linewidth=1, zorder=0)
        axes.plot(values, heights, "o", color=tone, markersize=5.5, alpha=0.5, mew=0, clip_on=False)
        middle = 100 * median(dots.values)
        axes.plot([middle, middle], [top + 24, top + 58], color=tone, linewidth=2.5, clip_on=False)
        if dots.majority is not None:
            dashes: Any = (0, (3, 2))
            line = [100 * dots.majority] * 2
            axes.plot(line, [top + 24, top + 58], color=color("warn"), linewidth=1.8, linestyle=dashes)
        axes.text(0, top + 16, name, color=color("ink"), fontsize=TEXT, va="baseline")
        axes.text(100, top + 16, summary, color=color("muted"), fontsize=TEXT, va="baseline", ha="right")
    return figure


def _thinned(values: Sequence[float]) -> list[float]:
    if len(values) <= _MOST_DOTS:
        return list(values)
    step = (len(values) - 1) / (_MOST_DOTS - 1)
    return [values[round(k * step)] for k in range(_MOST_DOTS)]
