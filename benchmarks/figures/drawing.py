"""Figures from tidy rows, such as those of `probes`: panels saved as PNG and SVG, with the rows as CSV.

Each docstring names the keys of its rows. `rows` are those of one panel, `every` those of all panels of a figure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isnan, sqrt
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.figures import row_charts
from benchmarks.figures.row_charts import SHAPES, Rows, row_tones
from fedloom.core.files import write_atomic
from fedloom.results.data_table import as_csv
from fedloom.results.plots.drawing import FILE, color, dress, in_light_theme, picture, stroke

_MOST_CLIENTS = 3  # rows of bubbles in a panel
_MOST_CLASSES = 20  # beyond these a legend is longer than its figure
_LEVELS = 14
_CLASS_TONES = (*(f"c{k}" for k in range(8)), "p2", "p1")
_MARKS = {"weights": "weight vectors", "means": "class means", "server": "the server's rows"}


def _draw_points(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Samples, or clients' rows, in the plane (`x`, `y`), coloured by `class`; other kinds of rows as large crosses.

    The axes have no ticks, because t-SNE and principal components have no unit.
    """
    names = {row["class"]: row["name"] for row in rows}
    for number, name in sorted(names.items()):
        class_rows = [row for row in rows if row["class"] == number]
        tone = color(_CLASS_TONES[number % len(_CLASS_TONES)])
        samples = [row for row in class_rows if row["kind"] == "sample"]
        label = name if len(names) <= _MOST_CLASSES else None
        ax.scatter(*_xy(samples), s=9, marker=SHAPES[number % 5], color=tone, alpha=0.7, linewidth=0, label=label)
        marks = [row for row in class_rows if row["kind"] != "sample"]
        ax.scatter(*_xy(marks), s=110, marker="X", color=tone, edgecolor=color("ink"), linewidth=1.1, zorder=3)
        for mark in marks if len(names) <= _MOST_CLASSES else ():
            ax.annotate(
                name,
                (mark["x"], mark["y"]),
                (7, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
                path_effects=[withStroke(linewidth=2.5, foreground=color("page"))],
                zorder=4,
            )
    for kind in dict.fromkeys(row["kind"] for row in rows if row["kind"] != "sample"):
        ax.scatter([], [], s=80, marker="X", color="none", edgecolor=color("ink"), label=_MARKS[kind])
    dress(ax, FILE, "", "", grid=None)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.set_box_aspect(1)
    for side in ax.spines.values():
        side.set_visible(True)
        side.set_color(color("line"))


def _draw_relations(ax: Axes, rows: Rows, every: Rows, axis: str) -> ScalarMappable:
    """One matrix [C, C] of probabilities (`i`, `j`, `value`) as a heat map; return the mappable for the colour bar.

    If the rows have a `distance` and a `correlation` to the other matrix of the pair, they are printed below it. The
    panels of a figure share one scale, from zero to their largest value.
    """
    size = 1 + max(row["i"] for row in rows)
    matrix = np.full((size, size), np.nan)
    for row in rows:
        matrix[row["i"], row["j"]] = row["value"]
    image = ax.imshow(matrix, cmap=_shades(), vmin=0, vmax=_largest(every), interpolation="none")
    first_row = rows[0]
    texts = [f"{first_row['distance']:.2g} apart from SL"] if first_row.get("distance") is not None else []
    texts += [f"r = {_signed(first_row['correlation'])}"] if first_row.get("correlation") is not None else []
    dress(ax, FILE, "class" + (f"\n{', '.join(texts)}" if texts else ""), "class", grid=None)
    step = 1 if size <= 10 else size // 5
    ax.set_xticks(range(0, size, step))
    ax.set_yticks(range(0, size, step))
    return image


def _draw_norms(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Bubbles of the first clients (`client`): area by `share` of the data in a `class`, a ring where there are none.

    Below each stands `norm`, the class's share of the weight norms; at the right the client's rank correlation.
    """
    clients = list(dict.fromkeys(row["client"] for row in rows))
    shown = clients[:_MOST_CLIENTS]
    largest = max(row["share"] for row in rows)
    for index, client in enumerate(shown):
        client_rows = [row for row in rows if row["client"] == client]
        for row in client_rows:
            held = row["share"] > 0
            size = max(260 * row["share"] / largest, 4) if held else 18
            face = color("p0") if held else "none"
            ax.scatter(row["class"], index, s=size, facecolor=face, edgecolor=color("p0"), linewidth=0.8)
            norm_text = f"{row['norm']:.3f}".removeprefix("0")
            ax.text(row["class"], index + 0.36, norm_text, ha="center", va="center", fontsize=7, color=color("ink"))
        last = max(row["class"] for row in client_rows) + 0.9
        ax.text(last, index, _signed(client_rows[0]["rank_correlation"]), va="center", fontsize=8, color=color("muted"))
    ax.text(last, -0.62, "rank corr.", va="center", fontsize=8, color=color("muted"))
    ranks = [row["rank_correlation"] for row in rows if row["rank_correlation"] is not None]
    correlation_text = f"median rank correlation {_signed(median(ranks))}" if ranks else "no rank correlation"
    dress(ax, FILE, f"class\n{len(shown)} of {len(clients)} clients; {correlation_text}", "", grid=None)
    ax.set_xticks(range(1 + max(row["class"] for row in rows)))
    ax.set_yticks(range(len(shown)), [f"D{k + 1}" for k in range(len(shown))])
    ax.set_ylim(len(shown) - 0.4, -0.8)
    ax.margins(x=0.04)


def _draw_surface(ax: Axes, rows: Rows, every: Rows, axis: str) -> ScalarMappable:
    """Draw the loss (`loss`, in nats) on a grid of steps along two directions (`x`, `y`); return the mappable for the
    colour bar.

    A grid point whose loss is not finite stays blank. The panels share one logarithmic colour scale.
    """
    xs, ys = (sorted({row[key] for row in rows}) for key in ("x", "y"))
    at = {(row["x"], row["y"]): row["loss"] for row in rows}
    grid = np.ma.masked_invalid([[at[x, y] for x in xs] for y in ys])
    values = np.ma.masked_invalid([row["loss"] for row in every])
    low, high = max(float(values.min()), 1e-6), float(values.max())
    # Levels have to increase, also where the loss is the same everywhere.
    levels = np.geomspace(low, max(high, 1.001 * low), _LEVELS)
    filled = ax.contourf(xs, ys, grid.clip(low), levels, cmap=_shades(), norm=LogNorm(levels[0], levels[-1]))
    lines = ax.contour(xs, ys, grid, levels[::2], colors=color("ink"), linewidths=0.5, alpha=0.6)
    ax.clabel(lines, fmt="%.3g", fontsize=7)
    ax.plot([0], [0], "+", color=color("c2"), markersize=11, markeredgewidth=2)
    dress(ax, FILE, "step along direction 1", "step along direction 2", grid=None)
    ax.set_xticks([xs[0], 0, xs[-1]])
    ax.set_yticks([ys[0], 0, ys[-1]])
    ax.set_box_aspect(1)
    return filled


def _draw_cohorts(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Draw the training `samples` of each `class` (its `name`) of the participants (`client`) of some rounds (`round`),
    as stacked bars."""
    names = {row["class"]: row["name"] for row in rows}
    places = {key: place for place, key in enumerate(dict.fromkeys((row["round"], row["client"]) for row in rows))}
    rounds = list(dict.fromkeys(round_ for round_, _ in places))
    at = {(round_, client): place + rounds.index(round_) for (round_, client), place in places.items()}
    bottom = dict.fromkeys(at, 0)
    for number, name in sorted(names.items()):
        held = {(row["round"], row["client"]): row["samples"] for row in rows if row["class"] == number}
        ax.bar(
            [at[key] for key in held],
            list(held.values()),
            0.8,
            [bottom[key] for key in held],
            color=color(_CLASS_TONES[number % len(_CLASS_TONES)]),
            label=name if len(names) <= _MOST_CLASSES else None,
        )
        for key, samples in held.items():
            bottom[key] += samples
    dress(ax, FILE, "client, by round", "training samples")
    ax.set_xticks(list(at.values()), [str(client) for _, client in at])
    ax.set_ylim(0, 1.15 * max(bottom.values()))
    for round_ in rounds:
        middle = float(np.mean([place for (of_round, _), place in at.items() if of_round == round_]))
        ax.text(middle, max(bottom.values()) * 1.04, f"round {round_}", ha="center", fontsize=8, color=color("muted"))


def _draw_drift(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Draw the `length` of each `part` of the drift by round (`x`), as medians over seeds; the whole drift is a wide
    pale line behind them. The panels share one scale."""
    parts = dict.fromkeys(row["part"] for row in every)
    for part, tone in row_tones([{"row": part} for part in parts]).items():
        lengths: dict[int, list[float]] = {}
        for row in rows:
            if row["part"] == part:
                lengths.setdefault(row["x"], []).append(row["length"])
        rounds = sorted(lengths)
        style = {"color": color("muted"), "linewidth": 6.0, "alpha": 0.35} if part == "drift" else stroke(tone)
        medians = [median(lengths[round_]) for round_ in rounds]
        ax.plot(rounds, medians, marker="o", markersize=3, label=part, zorder=1 if part == "drift" else 2, **style)
    ax.set_ylim(0, 1.08 * max((row["length"] for row in every), default=1.0) or 1.0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    dress(ax, FILE, "round", "length of the change of weights")


def _draw_residuals(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Draw squared residuals by step (`x`) on a logarithmic axis: the median over problems of each row, and its bound,
    dotted; `residual` and `bound` are relative to the first residual."""
    for label, tone in row_tones(rows).items():
        by_step: dict[int, list[tuple[float, float]]] = {}
        for row in rows:
            if row["row"] == label:
                by_step.setdefault(row["x"], []).append((row["residual"], row["bound"]))
        steps = sorted(by_step)
        medians = [median(residual for residual, _ in by_step[step]) for step in steps]
        bounds = [median(bound for _, bound in by_step[step]) for step in steps]
        ax.plot(steps, medians, linewidth=FILE.line, label=label, **stroke(tone))
        ax.plot(steps, bounds, linewidth=1.0, color=stroke(tone)["color"], linestyle=":")
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    dress(ax, FILE, "step", "squared residual / first (bounds dotted)")


def _xy(rows: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    return [row["x"] for row in rows], [row["y"] for row in rows]


def _largest(rows: Rows) -> float:
    return float(max(row["value"] for row in rows if not isnan(row["value"])))


def _shades() -> LinearSegmentedColormap:
    """From the page's colour to a dark blue: order is seen without hues."""
    return LinearSegmentedColormap.from_list("shades", [color("page"), color("p1"), color("c1")])


def _signed(value: float | None) -> str:
    return "–" if value is None or isnan(value) else f"{value:+.2f}".replace("-", "−")


_LETTER = 0.075  # inches that one takes in a legend


@dataclass(frozen=True, slots=True)
class _Kind:
    """How rows are drawn: a panel's rows, all rows, the name of the axis. `keys`: the columns that define a panel."""

    draw: Callable[[Axes, Rows, Rows, str], ScalarMappable | None]
    keys: tuple[str, ...] = ("panel",)
    width: float = 3.7  # inches of a panel
    height: float = 3.0
    bar: str = ""  # label of the colour bar
    one_seed: bool = False
    most: int = 3  # panels side by side
    column: str = ""  # what tells the panels of one line apart, where there is such a key
    each: float = 0.0  # inches that a row takes of a panel's height, where rows lie below each other


_BY_ROW = ("panel", "row")
_LINES = _Kind(row_charts.draw_lines)
_POINTS = _Kind(_draw_points, _BY_ROW, 3.2, 3.3, one_seed=True)
_SURFACES = _Kind(_draw_surface, _BY_ROW, 3.3, 3.2, bar="cross-entropy (nats)", one_seed=True)
_RELATION_KEYS = (*_BY_ROW, "matrix")
_KINDS = {
    "curves": _LINES,
    "sweep": _LINES,
    "clients": _Kind(row_charts.draw_boxes),
    "bars": _Kind(row_charts.draw_bars, width=4.6, each=0.28),
    "costs": _Kind(row_charts.draw_costs, width=4.2, height=3.4),
    "points": _POINTS,
    "local_points": _POINTS,
    "knowledge": _POINTS,
    "cohorts": _Kind(_draw_cohorts, _BY_ROW, 6.4, 3.0, one_seed=True, most=1),
    "relations": _Kind(_draw_relations, _RELATION_KEYS, 2.9, 3.0, bar="probability", one_seed=True, most=2),
    "norms": _Kind(_draw_norms, _BY_ROW, 4.6, 2.6, one_seed=True),
    "drift": _Kind(_draw_drift, _BY_ROW),
    "residuals": _Kind(_draw_residuals, width=4.6),
    "surface": _SURFACES,
    "landscapes": replace(_SURFACES, keys=("panel", "row", "model"), column="model", height=3.6),
}


def figure(kind: str, rows: Rows, axis: str = "") -> Figure:
    """Return a figure in the report's colours: a panel for each value of the keys that tell them apart.

    Args:
        kind: curves, sweep, clients, bars, costs, points, local_points, knowledge, relations, norms, surface,
            landscapes, cohorts, drift or residuals.
        rows: the rows to draw, at least one. Of models, those of the lowest seed are drawn.
        axis: the name of a sweep's axis.
    """
    how = _KINDS[kind]
    if how.one_seed:
        lowest = min(row.get("seed", 0) for row in rows)
        rows = [row for row in rows if row.get("seed", 0) == lowest]
    panels: dict[tuple[str, ...], list[dict[str, object]]] = {}
    for row in rows:
        panels.setdefault(tuple(str(row.get(key, "")) for key in how.keys), []).append(dict(row))
    wide = min(how.most, len(panels) if len(panels) <= how.most else ceil(sqrt(len(panels))))
    wide = len({row[how.column] for row in rows}) if how.column else wide
    high = -(-len(panels) // wide)
    with in_light_theme() as page:
        groups = max(len({row.get("group") for row in panel_rows}) for panel_rows in panels.values())
        height = max(how.height, 0.8 + how.each * groups * len({row.get("row") for row in rows}))
        drawn = Figure(figsize=(how.width * wide, height * high), layout="constrained", facecolor=page)
        grid = list(drawn.subplots(high, wide, squeeze=False).flat)
        bars = []
        for ax, panel_rows, title in zip(grid, panels.values(), _titles(list(panels)), strict=False):
            ax.set_title(title, loc="left", fontsize=10, color=color("ink"))
            bars.append(how.draw(ax, panel_rows, rows, axis if kind == "sweep" else ""))
        for ax in grid[len(panels) :]:
            ax.remove()
        _explained(drawn, grid[: len(panels)], bars[0], how)
    return drawn


def save(kind: str, rows: Rows, folder: Path, axis: str = "") -> list[Path]:
    """Write `figure.png`, `figure.svg` and `figure.csv` into a folder; their paths, none if there are no rows."""
    if not rows:
        return []
    drawn, written = figure(kind, rows, axis), []
    with in_light_theme():
        for ending in ("png", "svg"):
            written.append(folder / f"figure.{ending}")
            write_atomic(written[-1], picture(drawn, ending, dpi=160))
    written.append(folder / "figure.csv")
    write_atomic(written[-1], as_csv([dict(row) for row in rows]) + "\n")
    return written


def _titles(panels: Sequence[tuple[str, ...]]) -> list[str]:
    """Of each panel, the words in which it differs from another one; all where there is one panel alone."""
    differing = [k for k in range(len(panels[0])) if len({panel[k] for panel in panels}) > 1] or [0]
    return [" · ".join(panel[k] for k in differing) for panel in panels]


def _explained(drawn: Figure, grid: Sequence[Axes], bar: ScalarMappable | None, how: _Kind) -> None:
    """Add the colour bar and one legend for all panels."""
    width, height = drawn.get_size_inches()
    if bar is not None:
        scale = drawn.colorbar(bar, ax=list(grid), shrink=0.8, pad=0.02, format=FuncFormatter(lambda v, _: f"{v:.3g}"))
        scale.set_label(how.bar, color=color("muted"))
        scale.ax.tick_params(which="both", length=0, labelcolor=color("muted"), labelsize=8.5)
        scale.outline.set_visible(False)
        drawn.set_size_inches(width + 0.8, height)
    named = {label: handle for ax in grid for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if named:
        # Wider by the legend, which would otherwise take its room from the panels.
        drawn.set_size_inches(width + 0.6 + _LETTER * max(map(len, named)), max(height, 0.3 + 0.19 * len(named)))
        drawn.legend(
            named.values(), named, loc="outside right upper", frameon=False, fontsize=8.5, labelcolor=color("ink")
        )
