"""Lines by round, and rows of bars and dots, with the plain data that they are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from fedloom.results.group import mean_curve, selected_accuracies
from fedloom.results.plots.palette import dash, shortened_names, tone_name
from fedloom.results.report.axes import color, new_figure
from fedloom.runs.storage.log import CALLBACK_SPLIT
from fedloom.runs.storage.run_data import RunData


@dataclass(frozen=True, slots=True)
class Line:
    """One measure by round: mean over seeds, mean ± sample std where there are several, and every seed's own values."""

    label: str
    tone: int  # number of the group, which gives its colour
    rounds: list[int]
    mean: list[float]
    std: list[float] | None
    seeds: list[list[float]]
    faint: bool = False  # drawn thin and grey, because there are too many lines


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar chart: parts that add up, and their sum as text."""

    label: str
    parts: list[float]
    total: str


@dataclass(frozen=True, slots=True)
class Dots:
    """One row of a dot chart: values in [0, 1], one per client and seed, and the majority baseline if it is known."""

    label: str
    tone: int
    values: list[float]
    majority: float | None = None


def line(label: str, tone: int, results: Sequence[RunData], name: str, split: str) -> Line | None:
    """Return a measure over the rounds in which all runs have a finite value; None where there is no such round.

    label, tone: name of the line, and index of its colour. results: runs that differ in their seed. name, split: the
    measure and its split, as in `curve`.
    """
    mean = mean_curve(results, name, split)
    return None if mean is None else Line(label, tone, mean.rounds, mean.mean, mean.std, mean.seeds)


def terms(results: Sequence[RunData]) -> list[str]:
    """Names of the loss terms that training logged, in order of appearance."""
    return list(dict.fromkeys(r["name"] for result in results for r in result.rows if r["split"] == "train"))


def diverged(results: Sequence[RunData]) -> dict[str, int]:
    """Measures that were not finite, with the first such round; not those of callbacks, where NaN stands for none."""
    first: dict[str, int] = {}
    for result in results:
        for row in result.rows:
            if not isfinite(row["value"]) and row["split"] != CALLBACK_SPLIT:
                name = f"{row['split']} {row['name']}"
                first[name] = min(row["round"], first.get(name, row["round"]))
    return first


def all_clients(results: Sequence[RunData]) -> list[float]:
    """Test accuracy of each client at the selected round, all seeds together."""
    return [value for result in results for value in selected_accuracies(result).values()]


TEXT = 12.0  # CSS pixels at natural size
_MOST_SEEDS, _MOST_LINES = 6, 3  # beyond these, single seeds only blur the picture
_MARKS = (("o", "●"), ("s", "■"), ("^", "▲"), ("D", "◆"))
CHARACTER = 7.2  # CSS pixels that one takes in a name
_LABEL_STEP = 16.0
_NAME = 18.0  # CSS pixels for the name of the y axis


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in CSS pixels at natural size, and how many characters of a line's name are shown."""

    width: float
    height: float
    characters: int


def draw_lines(
    lines: Sequence[Line],
    size: Size,
    quantity: str,
    *,
    share: bool,
    marked: bool = False,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Draw means over seeds as lines, ± sample std as bands, single seeds thin behind them.

    lines: the measures by round. size: size of the figure; without characters for names, a legend elsewhere has them.
    quantity: label of the y axis, with its unit. share: values are shares in [0, 1] and shown as percent. marked: give
    each line a marker, also next to its name, where lines share one colour (terms of one method). limits: of the y
    axis; None for those of the lines.
    """
    figure = new_figure(size.width, size.height)
    strong = [line for line in lines if not line.faint]
    names = shortened_names([line.label for line in strong], size.characters)
    if marked:
        names = [f"{_MARKS[k % len(_MARKS)][1]} {name}" for k, name in enumerate(names)]
    room = 14 + CHARACTER * max(len(name) for name in names) if size.characters else 10
    axes = place(figure, _NAME + (44 if share else 50), 14, room, 38)
    last = max(line.rounds[-1] for line in lines)
    for k, line in enumerate(lines):
        mark = _MARKS[k % len(_MARKS)][0] if marked else None
        singly = shows_seeds(lines) and not marked
        _draw_line(axes, line, last, mark, singly=singly, band=0.39 / max(len(strong), 3))
    _axes_of_rounds(axes, lines, share)
    if limits is not None:
        axes.set_ylim(*limits)
    middle = axes.get_position()
    figure.text(
        TEXT / 2 / (72 * figure.get_figwidth()),
        (middle.y0 + middle.y1) / 2,
        quantity,
        rotation=90,
        color=color("muted"),
        fontsize=TEXT,
        ha="center",
        va="center",
    )
    if size.characters:
        _name_ends(figure, axes, list(zip(strong, names, strict=True)))
    return figure


def shows_seeds(lines: Sequence[Line]) -> bool:
    """Whether single seeds are drawn too."""
    return len(lines) <= _MOST_LINES and max(len(line.seeds) for line in lines) <= _MOST_SEEDS


def _draw_line(axes: Axes, line: Line, last: int, mark: str | None, *, singly: bool, band: float) -> None:
    tone = color(tone_name(line.tone))
    if line.faint:
        axes.plot(line.rounds, line.mean, color=color("muted"), alpha=0.4, linewidth=0.9)
        return
    if line.std is not None:
        low = [m - s for m, s in zip(line.mean, line.std, strict=True)]
        high = [m + s for m, s in zip(line.mean, line.std, strict=True)]
        axes.fill_between(line.rounds, low, high, color=tone, alpha=band, linewidth=0)
        for seed in line.seeds if singly else ():
            axes.plot(line.rounds, seed, color=tone, alpha=0.35, linewidth=0.8)
    stroke = dash(line.tone)
    axes.plot(line.rounds, line.mean, color=tone, linewidth=2, linestyle=stroke, solid_capstyle="round", zorder=3)
    end, value = line.rounds[-1], line.mean[-1]
    dot: dict[str, Any] = {"color": tone, "markersize": 6, "mec": color("page"), "mew": 1.2}
    axes.plot([end], [value], mark or "o", zorder=4, clip_on=False, **dot)
    if mark is not None:
        step = max(len(line.rounds) // 6, 1)
        axes.plot(line.rounds[::step], line.mean[::step], mark, zorder=4, clip_on=False, **dot)
    if end < last:  # leads to the name, which stands at the right edge
        axes.plot([end, last], [value, value], color=tone, linewidth=1, linestyle=(0, (1, 3)))


def place(figure: Figure, left: float, top: float, right: float, bottom: float) -> Axes:
    """Return axes without a frame, within margins.

    left: left margin in CSS pixels, as the others. top: upper margin. right: right margin. bottom: lower margin.
    """
    width, height = 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    )
    axes.set_facecolor("none")
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(length=0, labelsize=TEXT, labelcolor=color("muted"), pad=6)
    return axes


def _axes_of_rounds(axes: Axes, lines: Sequence[Line], share: bool) -> None:
    first, last = min(line.rounds[0] for line in lines), max(line.rounds[-1] for line in lines)
    axes.set_xlim((first, last) if last > first else (first - 0.5, last + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.set_xlabel("round", color=color("muted"), fontsize=TEXT, labelpad=5)
    values = [value for line in lines for value in line.mean]
    # On a linear axis a loss that falls by more than 30 times looks like a flat line after its first rounds.
    if not share and min(values) > 0 and max(values) > 30 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
        low, high = axes.get_ylim()
        if share:  # a band may leave [0, 1], no accuracy can
            axes.set_ylim(max(low, -0.02), 1.02 if high > 0.85 else high)
        elif min(values) >= 0:
            axes.set_ylim(0, high)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %" if share else f"{value:g}"))
    axes.grid(axis="y", color=color("line"), linewidth=1)
    axes.set_axisbelow(True)


def _name_ends(figure: Figure, axes: Axes, ends: Sequence[tuple[Line, str]]) -> None:
    """Write each line's name at its right end; move names apart where they would overlap."""
    height = 72 * figure.get_figheight()
    to_y = axes.transData.transform
    order = sorted(ends, key=lambda end: end[0].mean[-1])
    spots = [float(to_y((1, line.mean[-1]))[1]) for line, _ in order]
    # Push names up from the lowest, then down from the top edge, because the first pass may leave the figure.
    for k in range(1, len(spots)):
        spots[k] = max(spots[k], spots[k - 1] + _LABEL_STEP)
    ceiling = height - TEXT / 2
    for k in reversed(range(len(spots))):
        spots[k] = min(spots[k], ceiling)
        ceiling = spots[k] - _LABEL_STEP
    right = axes.get_position().x1
    for (line, name), spot in zip(order, spots, strict=True):
        axes.text(
            right + 11 / (72 * figure.get_figwidth()),
            spot / height,
            name,
            transform=figure.transFigure,
            color=color(tone_name(line.tone)),
            fontsize=TEXT,
            va="center_baseline",
        )


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
