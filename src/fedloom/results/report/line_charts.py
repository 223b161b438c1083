"""Charts of rows, and their drawings: curves by round, dots of single clients, and differences from the baseline.
A panel shows the rows of one setting; a method has one name and one colour in all charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from fedloom.core.text import BASELINE, lists_by_key, percent
from fedloom.results.pairs import Paired, all_paired
from fedloom.results.plot_values import ChartRow
from fedloom.results.plots import drawing
from fedloom.results.plots.drawing import inline
from fedloom.results.plots.palette import Curve, Estimate, Over, dash_number, shortened_names, tone_name
from fedloom.results.report.markup import chart, grid, key, paragraph, shared_legend


@dataclass(frozen=True, slots=True)
class Dots:
    """One row of a dot chart: values in [0, 1], one per client and seed, and the majority baseline if it is known."""

    label: str
    tone: int
    values: list[float]
    majority: float | None = None


_MOST_SEEDS, _MOST_WITH_SEEDS = 6, 3  # seeds and lines; beyond these, single seeds only blur the picture
_LABEL_STEP = 16.0
_NAME = 18.0  # CSS pixels for the name of the y axis


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height in CSS pixels at natural size, and how many characters of a line's name are shown."""

    width: float
    height: float
    characters: int


def draw_lines(
    curves: Sequence[Curve], size: Size, quantity: str, limits: tuple[float, float] | None = None, over: Over = "round"
) -> Figure:
    """Draw shares, means over seeds, as lines in percent, ± sample std as bands, single seeds thin behind them.
    A `size` without characters leaves names to a legend elsewhere. limits: of the y axis. over: the x axis."""
    figure = drawing.new_figure(size.width, size.height)
    strong = [curve for curve in curves if not curve.faint]
    names = shortened_names([curve.method for curve in strong], size.characters)
    room = 14 + drawing.CHARACTER * max(len(name) for name in names) if size.characters else 10
    axes = drawing.place(figure, _NAME + 44, 14, room, 38)
    last, singly = max(curve.rounds[-1] for curve in curves), shows_seeds(curves)
    for curve in curves:
        drawing.draw_curve(axes, curve, drawing.PAGE, band=0.39 / max(len(strong), 3), solid_capstyle="round", zorder=3)
        if not curve.faint:
            _mark_line(axes, curve, last, singly)
    _axes_of_rounds(axes, curves, over)
    if limits is not None:
        axes.set_ylim(*limits)
    middle = axes.get_position()
    place_of_name = drawing.TEXT / 2 / size.width, (middle.y0 + middle.y1) / 2
    look: dict[str, Any] = {"rotation": 90, "color": drawing.color("muted"), "fontsize": drawing.TEXT}
    figure.text(*place_of_name, quantity, ha="center", va="center", **look)
    if size.characters:
        _name_ends(figure, axes, list(zip(strong, names, strict=True)))
    return figure


def shows_seeds(curves: Sequence[Curve]) -> bool:
    """Whether single seeds are drawn too."""
    return len(curves) <= _MOST_WITH_SEEDS and max(len(curve.seeds) for curve in curves) <= _MOST_SEEDS


def _mark_line(axes: Axes, curve: Curve, last: float, singly: bool) -> None:
    tone = drawing.color(tone_name(curve.tone))
    for seed in curve.seeds if singly and curve.std is not None else ():
        axes.plot(curve.rounds, seed, color=tone, alpha=0.35, linewidth=0.8)
    end, value = curve.rounds[-1], curve.mean[-1]
    dot: dict[str, Any] = {"color": tone, "markersize": 6, "mec": drawing.color("page"), "mew": 1.2, "clip_on": False}
    axes.plot([end], [value], "o", zorder=4, **dot)
    if end < last:  # leads to the name, which stands at the right edge
        axes.plot([end, last], [value, value], color=tone, linewidth=1, linestyle=(0, (1, 3)))


def _axes_of_rounds(axes: Axes, curves: Sequence[Curve], over: Over) -> None:
    first, last = min(curve.rounds[0] for curve in curves), max(curve.rounds[-1] for curve in curves)
    axes.set_xlim((first, last) if last > first else (first - 0.5, last + 0.5))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=over == "round", min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -0.02), 1.02 if high > 0.85 else high)  # a band may leave [0, 1], no accuracy can
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    drawing.dress(axes, drawing.PAGE, over)


def _name_ends(figure: Figure, axes: Axes, ends: Sequence[tuple[Curve, str]]) -> None:
    """Write each line's name at its right end; move names apart where they would overlap."""
    height = 72 * figure.get_figheight()
    to_y = axes.transData.transform
    order = sorted(ends, key=lambda end: end[0].mean[-1])
    spots = [float(to_y((1, curve.mean[-1]))[1]) for curve, _ in order]
    # Push names up from the lowest, then down from the top edge, because the first pass may leave the figure.
    for k in range(1, len(spots)):
        spots[k] = max(spots[k], spots[k - 1] + _LABEL_STEP)
    ceiling = height - drawing.TEXT / 2
    for k in reversed(range(len(spots))):
        spots[k] = min(spots[k], ceiling)
        ceiling = spots[k] - _LABEL_STEP
    x = axes.get_position().x1 + 11 / (72 * figure.get_figwidth())
    for (curve, name), spot in zip(order, spots, strict=True):
        look: dict[str, Any] = {
            "color": drawing.color(tone_name(curve.tone)),
            "fontsize": drawing.TEXT,
            "va": "center_baseline",
        }
        axes.text(x, spot / height, name, transform=figure.transFigure, **look)


_ROW = 46.0
_DOT_ROW, _DOT_BAND = 62.0, 26.0
_MOST_DOTS = 300  # per row; of more, evenly spaced quantiles are drawn


def _name_rows(
    axes: Axes, row_height: float, baseline: float, names: Sequence[str], values: Sequence[str], ink: str
) -> None:
    """Write the name of each row at its left, and its value in words at its right, in the colour `ink`."""
    left, right = axes.get_xlim()
    width = 72 * axes.figure.get_figwidth() * axes.get_position().width  # type: ignore[union-attr]  # a whole figure
    letters = width / drawing.CHARACTER - 1 - max(map(len, values), default=0)
    for row, (name, value) in enumerate(zip(shortened_names(names, letters), values, strict=True)):
        y = row * row_height + baseline
        axes.text(left, y, name, color=drawing.color("ink"), fontsize=drawing.TEXT, va="baseline")
        axes.text(right, y, value, color=drawing.color(ink), fontsize=drawing.TEXT, va="baseline", ha="right")


def _axes_of_rows(width: float, row_height: float, rows: int, x: str) -> tuple[Figure, Axes]:
    figure = drawing.new_figure(width, row_height * rows + 44)
    axes = drawing.place(figure, 8, 0, 22, 44)
    drawing.dress(axes, drawing.PAGE, x, grid=None)
    axes.set_ylim(row_height * rows, 0)
    axes.set_yticks([])
    return figure, axes


def draw_dots(rows: Sequence[Dots], width: float) -> Figure:
    """Draw a dot per client and seed on an axis to 100 %, a row for each method, and a line at the median."""
    figure, axes = _axes_of_rows(width, _DOT_ROW, len(rows), "test accuracy")
    axes.set_xlim(0, 100)
    axes.xaxis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} %"))
    summaries = [f"median {100 * median(dots.values):.1f} · lowest {100 * min(dots.values):.1f}" for dots in rows]
    _name_rows(axes, _DOT_ROW, 16, [dots.label for dots in rows], summaries, "muted")
    for row, dots in enumerate(rows):
        top, tone = row * _DOT_ROW, drawing.color(tone_name(dots.tone))
        values = [100 * value for value in _thinned(sorted(dots.values))]
        heights = [top + 28 + _DOT_BAND * (1 - k / max(1, len(values) - 1)) for k in range(len(values))]
        for tick in (0, 25, 50, 75, 100):
            axes.plot([tick, tick], [top + 25, top + 57], color=drawing.color("line"), linewidth=1, zorder=0)
        axes.plot(values, heights, "o", color=tone, markersize=5.5, alpha=0.5, mew=0, clip_on=False)
        middle = 100 * median(dots.values)
        axes.plot([middle, middle], [top + 24, top + 58], color=tone, linewidth=2.5, clip_on=False)
        if dots.majority is not None:
            dashes: Any = (0, (3, 2))
            line = [100 * dots.majority] * 2
            axes.plot(line, [top + 24, top + 58], color=drawing.color("warn"), linewidth=1.8, linestyle=dashes)
    return figure


def _thinned(values: Sequence[float]) -> list[float]:
    if len(values) <= _MOST_DOTS:
        return list(values)
    step = (len(values) - 1) / (_MOST_DOTS - 1)
    return [values[round(k * step)] for k in range(_MOST_DOTS)]


def draw_differences(rows: Sequence[Estimate], width: float, limits: tuple[float, float], quantity: str) -> Figure:
    """Draw differences from zero as dots with intervals, a row for each method; `limits` are those of all panels,
    `quantity` names the axis, the width is in CSS pixels."""
    figure, axes = _axes_of_rows(width, _ROW, len(rows), quantity)
    margin = 0.04 * (limits[1] - limits[0] or 1.0)
    axes.set_xlim(limits[0] - margin, limits[1] + margin)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=max(4, int(width // 90))))
    _name_rows(axes, _ROW, 14, [row.method for row in rows], [row.text for row in rows], "muted")
    for index, row in enumerate(rows):
        top = index * _ROW
        axes.plot([0, 0], [top + 25, top + 43], color=drawing.color("muted"), linewidth=1, zorder=0)
        drawing.draw_estimate(axes, row, top + 34, drawing.PAGE)
    return figure


_HERO, _PHONE, _PANEL = Size(900, 380, 30), Size(360, 290, 9), Size(390, 270, 0)
_MOST_LINES, _EMPHASISED = 14, 7  # of more lines, the best and the baseline alone have their colours


def by_panel(rows: Sequence[ChartRow]) -> dict[str, list[ChartRow]]:
    """Group rows by the setting in which they compare, in the order of their first appearance."""
    return lists_by_key((row.panel, row) for row in rows)


def wide_and_narrow(
    draw: Callable[[float], Figure], name: str, title: str, description: str, wide: float
) -> list[Markup]:
    """Draw a chart with its title and description at the width `wide` and at a phone's; `name`: the prefix of ids."""
    sizes = (("wide", wide), ("narrow", 360.0))
    return [inline(partial(draw, width), f"{name}-{css}", title, description, css) for css, width in sizes]


def panels_of(
    draw: Callable[[str, float], Figure], panels: Mapping[str, tuple[str, str]], name: str, caption: str
) -> list[Markup]:
    """Render a chart for each of the panels (title and description) below one caption; a single one is wide. `draw`
    makes a panel at a width in CSS pixels, and `name` is the prefix of ids."""
    if len(panels) == 1:
        ((panel, (title, description)),) = panels.items()
        return [chart(wide_and_narrow(partial(draw, panel), f"{name}-0", title, description, 900.0), panel, caption)]
    figures = [
        chart([inline(partial(draw, panel, 390.0), f"{name}-{k}", title, description)], panel)
        for k, (panel, (title, description)) in enumerate(panels.items())
    ]
    return [paragraph(caption, "note"), grid(figures)] if figures else []


def learning_curves(rows: Sequence[ChartRow], over: Over = "round") -> list[Markup]:
    """Render test accuracy by round or over virtual time, a panel for each setting; nothing for rows without it."""
    by_setting = _by_panel(rows, over)
    every = [curve for curves in by_setting.values() for curve in curves]
    if not every:
        return []
    by, prefix = ("by round", "accuracy") if over == "round" else ("over virtual time", "virtual")
    caption = f"Test accuracy {by}."
    if any(curve.std for curve in every):
        caption += " Mean over seeds; band: ± sample standard deviation"
        caption += "; thin lines: single seeds." if all(map(shows_seeds, by_setting.values())) else "."
    if any(curve.faint for curve in every):
        caption += f" Coloured: FedAvg and the {_EMPHASISED} highest at the end; grey: the other methods."
    panels = [(panel, curves) for panel, curves in by_setting.items() if curves]
    title, quantity = "Learning curves", "test accuracy"
    if len(panels) == 1:
        ((panel, curves),) = panels
        label = f"{title}, {quantity} {by}: {_ends(curves)}."
        svgs = [
            inline(partial(draw_lines, curves, size, quantity, over=over), f"{prefix}-{css}", title, label, css)
            for css, size in (("wide", _HERO), ("narrow", _PHONE))
        ]
        return [chart(svgs, "", caption, _key(rows, curves), wide=True)]
    limits = _limits(every)
    figures = []
    for k, (panel, curves) in enumerate(panels):
        draw = partial(draw_lines, curves, _PANEL, quantity, limits=limits, over=over)
        label = f"{title} of {panel}, {quantity} {by}: {_ends(curves)}."
        figures.append(chart([inline(draw, f"{prefix}-{k}", f"{title}, {panel}", label)], panel))
    return [shared_legend("", caption, _legend(rows, every)), grid(figures)]


def _legend(rows: Sequence[ChartRow], curves: Sequence[Curve]) -> list[tuple[str, str, int]]:
    """Return the colour, the name and the number of the dash of every method that is drawn, each once."""
    shown = {curve.tone for curve in curves if not curve.faint}
    entries = ((tone_name(row.tone), row.method, dash_number(row.tone)) for row in rows if row.tone in shown)
    return list(dict.fromkeys(entries))


def _key(rows: Sequence[ChartRow], curves: Sequence[Curve]) -> Markup | None:
    """A legend where dashes tell lines apart; otherwise for narrow screens, where a name is too long for its line."""
    entries = _legend(rows, curves)
    if any(dash for *_, dash in entries):
        return key(entries)
    return None if all(len(curve.method) <= _PHONE.characters for curve in curves) else key(entries, "narrow")


def _by_panel(rows: Sequence[ChartRow], over: Over) -> dict[str, list[Curve]]:
    """The curves of each setting. Of many, all but the baseline's and those of the highest accuracies are faint."""
    panels = {}
    for panel, members in by_panel(rows).items():
        curves = [curve for row in members if (curve := row.curve("accuracy", over=over)) is not None]
        if len(curves) > _MOST_LINES:
            best = sorted((row for row in members if row.tone), key=lambda row: -row.row["accuracy"])[:_EMPHASISED]
            strong = {0, *(row.tone for row in best)}
            curves = [replace(curve, faint=curve.tone not in strong) for curve in curves]
            # Faint ones first, because later lines are drawn over earlier ones.
            curves.sort(key=lambda curve: not curve.faint)
        panels[panel] = curves
    return panels


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    bounds = [
        mean + sign * std
        for curve in curves
        for mean, std in zip(curve.mean, curve.std or [0.0] * len(curve.mean), strict=True)
        for sign in (-1, 1)
    ]
    return max(min(bounds) - 0.02, -0.02), min(max(bounds) + 0.02, 1.02)


def _ends(curves: Sequence[Curve]) -> str:
    return ", ".join(f"{curve.method} ends at {percent(curve.mean[-1])} %" for curve in curves)


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """The difference of a row from its baseline, with the name of that one's method."""

    pair: Paired
    drawn: Estimate
    baseline: str


def difference_rows(rows: Sequence[ChartRow]) -> dict[str, list[DifferenceRow]]:
    """Compare every method with the baseline of its setting, by setting; pairs without an interval are left out."""
    row_by_label = {row.row["label"]: row for row in rows}
    panels: dict[str, list[DifferenceRow]] = {}
    for pair in all_paired([row.row for row in rows], BASELINE):
        row, baseline, outcome = row_by_label[pair.label], row_by_label[pair.reference].method, pair.outcome
        if outcome.low is not None and outcome.high is not None:
            mean, bounds = 100 * outcome.mean, (100 * outcome.low, 100 * outcome.high)
            words, hollow = f"{mean:+.1f} · {outcome.word}", outcome.word == "too few seeds"
            drawn = Estimate(row.method, row.tone, mean, bounds, words, hollow)
            panels.setdefault(row.panel, []).append(DifferenceRow(pair, drawn, baseline))
    return panels


def differences(panels: Mapping[str, Sequence[DifferenceRow]]) -> list[Markup]:
    """Render differences from the baseline in points with 95 % intervals, a panel for each setting."""
    caption = (
        "Dot: mean difference over equal seeds; line: its 95 % t interval, alone. The word is that of the rotation "
        "test, adjusted over the family. Hollow dots have fewer than three seeds."
    )
    bounds = [bound for rows in panels.values() for row in rows for bound in row.drawn.ends]
    limits = min(0.0, *bounds), max(0.0, *bounds)
    described = {}
    for panel, rows in panels.items():
        words = "; ".join(f"{row.pair.label}: {row.pair.outcome.verdict}, {row.pair.outcome.figures()}" for row in rows)
        title = f"Differences from the baseline{f', {panel}' if panel else ''}"
        described[panel] = title, f"Differences in accuracy from {_reference(rows)}: {words}."

    def draw(panel: str, width: float) -> Figure:
        quantity = f"points from {_reference(panels[panel])}"
        return draw_differences([row.drawn for row in panels[panel]], width, limits, quantity)

    return panels_of(draw, described, "differences", caption)


def _reference(rows: Sequence[DifferenceRow]) -> str:
    """Name the baseline; rows may have several, such as two presets."""
    references = {row.baseline for row in rows}
    return references.pop() if len(references) == 1 else "the setting's baseline"
