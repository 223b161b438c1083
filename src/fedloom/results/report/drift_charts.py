"""Pictures of drift: stacked parts, lines by round, matrices of clients, weights of the mean."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.results.plots.palette import dash, tone_name
from fedloom.results.report.axes import dressed
from fedloom.results.report.svg import color, new_figure

_TONES = {"local": "p0", "sampling": "p2", "server": "p4"}
_POSITIVE, _NEGATIVE = (0.20, 0.49, 0.75), (0.85, 0.45, 0.10)  # mixed by opacity, for light and dark pages alike
_WRITTEN = 10  # clients of a matrix whose cells have room for numbers
_NARROW = 420


def draw_parts(values: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw the parts of the drift as stacked bars, one for each round.

    Args:
        values: `rounds`, and in `parts` a list of lengths for each part; a negative one stands below zero.
        size: width and height in SVG units.
    """
    figure, ax = _figure(size)
    rounds = values["rounds"]
    places = range(len(rounds))
    above, below = np.zeros(len(rounds)), np.zeros(len(rounds))
    for part, heights in values["parts"].items():
        height = np.asarray(heights, dtype=float)
        ax.bar(places, height, 0.8, np.where(height < 0, below, above), color=color(_TONES[part]), label=part)
        above, below = above + height.clip(min=0), below + height.clip(max=0)
    ax.axhline(0, color=color("muted"), linewidth=0.8)
    step = -(-len(rounds) // (8 if size[0] < _NARROW else 16))
    ax.set_xticks(places[::step], [str(round_) for round_ in rounds[::step]])
    dressed(ax, "round", "drift (length of weights)")
    return _with_legend(figure)


def draw_round_lines(values: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw a line for each figure by round.

    Args:
        values: `rounds`, `unit`, and in `lines` a list of values by label; None leaves a gap, or a point alone.
        size: width and height in SVG units.
    """
    figure, ax = _figure(size)
    for tone, (label, numbers) in enumerate(values["lines"].items(), 1):
        known = [(round_, value) for round_, value in zip(values["rounds"], numbers, strict=True) if value is not None]
        mark = "o" if len(known) < 30 else None
        rounds, heights = zip(*known, strict=True)
        stroke: dict[str, Any] = {"color": color(tone_name(tone)), "linestyle": dash(tone)}
        ax.plot(rounds, heights, marker=mark, markersize=4, linewidth=1.8, label=label, **stroke)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    dressed(ax, "round", values["unit"])
    return _with_legend(figure)


def draw_matrix(values: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw a figure of each pair of clients as the opacity of a cell, with its number where there is room.

    Args:
        values: `clients` [k], and `cells` [k][k]; None is an empty cell.
        size: width and height in SVG units.
    """
    figure, ax = _figure(size)
    clients = values["clients"]
    cells = np.array([[nan if value is None else value for value in row] for row in values["cells"]], dtype=float)
    largest = np.nanmax(np.abs(cells), initial=0.0) or 1.0
    colors = np.zeros((*cells.shape, 4))
    colors[..., :3] = np.where((cells < 0)[..., None], _NEGATIVE, _POSITIVE)
    colors[..., 3] = np.nan_to_num(np.abs(cells) / largest) * 0.85
    ax.imshow(colors, interpolation="none", aspect="auto")
    step = -(-len(clients) // _WRITTEN)
    ticks = range(0, len(clients), step)
    names = [str(clients[k]) for k in ticks]
    ax.set_xticks(ticks, names)
    ax.set_yticks(ticks, names)
    if len(clients) <= _WRITTEN:
        for i, j in zip(*np.nonzero(np.isfinite(cells)), strict=True):
            text = f"{cells[i, j]:.2f}"
            ax.text(j, i, text, ha="center", va="center", fontsize=8 if size[0] < _NARROW else 9, color=color("ink"))
    dressed(ax, "client", "client", grid=None)
    return figure


def draw_weights(values: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw the weight of each client as a bar, and equal weights as a line.

    Args:
        values: `clients` and their `weights`, which sum to 1.
        size: width and height in SVG units.
    """
    figure, ax = _figure(size)
    clients, weights = values["clients"], values["weights"]
    places = range(len(clients))
    ax.bar(places, weights, 0.8, color=color("p0"))
    ax.set_ylim(0, 1.12 * max(*weights, 1 / len(clients)))
    ax.axhline(1 / len(clients), color=color("p2"), linewidth=1.6, linestyle=(0, (4, 3)))
    step = -(-len(clients) // (10 if size[0] < _NARROW else 20))
    ax.set_xticks(places[::step], [str(client) for client in clients[::step]])
    dressed(ax, "client", "weight in the mean")
    return figure


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = new_figure(*size)
    figure.set_layout_engine("constrained")
    ax = figure.subplots()
    ax.set_facecolor("none")
    return figure, ax


def _with_legend(figure: Figure) -> Figure:
    """The figure with a legend below it."""
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5, labelcolor=color("ink"))
    return figure
