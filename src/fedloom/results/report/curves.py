"""Lines by round, named at their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from fedloom.results.plots.names import shortened_names
from fedloom.results.plots.palette import dash, tone_name
from fedloom.results.report.measures import Line
from fedloom.results.report.svg import color, new_figure

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

    Args:
        lines: the measures by round.
        size: size of the figure; without characters for names, a legend elsewhere has them.
        quantity: what the y axis shows, with its unit.
        share: values are shares in [0, 1] and shown as percent.
        marked: lines of one colour (terms of one method), told apart by marks that stand beside their names too.
        limits: of the y axis; None for those of the lines.
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

    Args:
        figure: the figure that gets the axes.
        left: left margin in CSS pixels, as the others.
        top: upper margin.
        right: right margin.
        bottom: lower margin.
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
    """Each line's name beside its end, moved apart where they would overlap."""
    height = 72 * figure.get_figheight()
    to_y = axes.transData.transform
    order = sorted(ends, key=lambda end: end[0].mean[-1])
    spots = [float(to_y((1, line.mean[-1]))[1]) for line, _ in order]
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
