"""Who holds what: clients by classes, as bubbles or, for many of them, as a heat grid."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.results.plots import drawing
from fedloom.results.plots.palette import shortened

WIDTH = 390.0  # CSS pixels at natural size
Vertical = Literal["bottom", "center_baseline"]
_MOST_CLIENTS, _MOST_CLASSES = 40, 20  # beyond these bubbles turn to crumbs
_HEAT = (0.20, 0.49, 0.75)  # mixed by opacity, which suits light and dark themes
_OWNER = 14  # characters of a domain's name
_LEFT, _TOP, _RIGHT, _BOTTOM = 40.0, 46.0, 44.0, 6.0


def as_bubbles(counts: Sequence[Sequence[int]]) -> bool:
    """Whether `draw_holdings` draws bubbles; otherwise a heat grid."""
    return len(counts) <= _MOST_CLIENTS and len(counts[0]) <= _MOST_CLASSES


def owners(scenario: Mapping[str, Any]) -> list[str]:
    """The domain of each pictured client (the one it holds most of); [] without domains."""
    counts = scenario.get("domain_counts") or []
    return [scenario["domains"][max(range(len(row)), key=row.__getitem__)] for row in counts]


def draw_holdings(counts: Sequence[Sequence[int]], classes: Sequence[str], owners: Sequence[str] = ()) -> Figure:
    """Draw samples by client and class [clients, classes] as the area of bubbles or the opacity of a grid.

    owners: a word for each client, such as its domain; only bubbles have room for it.
    """
    bubbles = as_bubbles(counts)
    left = _LEFT + (min(max(map(len, owners)), _OWNER) * drawing.CHARACTER if owners and bubbles else 0)
    clients, width = len(counts), (WIDTH - left - _RIGHT) / len(classes)
    pitch = min(max(width, 20.0), 32.0) if bubbles else max(400.0 / clients, 2.2)
    figure = drawing.new_figure(WIDTH, _TOP + _BOTTOM + pitch * clients)
    axes = drawing.place(figure, left, _TOP, _RIGHT, _BOTTOM)
    axes.set_xlim(-0.5, len(classes) - 0.5)
    axes.set_ylim(clients - 0.5, -0.5)
    axes.xaxis.tick_top()
    largest = max(max(row) for row in counts) or 1
    if bubbles:
        axes.set_xticks(range(len(classes)), [shortened(name, width / drawing.CHARACTER) for name in classes])
        beside = [f"{shortened(owner, _OWNER)} {k}" for k, owner in enumerate(owners)] or list(map(str, range(clients)))
        axes.set_yticks(range(clients), beside)
        _bubbles(axes, counts, largest, 0.94 * min(width, pitch))
    else:
        cells = np.zeros((clients, len(classes), 4))
        cells[..., :3] = _HEAT
        cells[..., 3] = np.asarray(counts) / largest
        axes.imshow(cells, aspect="auto", interpolation="none")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    drawing.dress(axes, drawing.PAGE, "class", grid=None)
    axes.xaxis.set_label_position("top")
    _beside(axes, "client", (0, 1), (-6, 6), "bottom")
    return figure


def _bubbles(axes: Axes, counts: Sequence[Sequence[int]], largest: int, across: float) -> None:
    """A bubble per class held (the largest is `across` CSS pixels wide) and each client's sum at the right."""
    axes.hlines(np.arange(len(counts)), -0.5, len(counts[0]) - 0.5, color=drawing.color("line"), linewidth=1, zorder=0)
    held = [(c, k, count) for k, row in enumerate(counts) for c, count in enumerate(row) if count]
    areas = [max(across**2 * count / largest, 4.0) for _, _, count in held]
    x, y = [c for c, _, _ in held], [k for _, k, _ in held]
    axes.scatter(x, y, s=areas, color=drawing.color("p0"), alpha=0.85, linewidth=0, clip_on=False)
    for k, row in enumerate(counts):
        _beside(axes, f"{sum(row):,}", (1, 1 - (k + 0.5) / len(counts)), (_RIGHT, 0), "center_baseline")
    _beside(axes, "sum", (1, 1), (_RIGHT, 6), "bottom")


def _beside(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], vertical: Vertical) -> None:
    """Right-aligned text: `at` as a fraction of the axes, `offset` in CSS pixels."""
    axes.annotate(
        text,
        at,
        offset,
        xycoords="axes fraction",
        textcoords="offset points",
        ha="right",
        va=vertical,
        color=drawing.color("muted"),
        fontsize=drawing.TEXT,
        annotation_clip=False,
    )


def save_holdings(scenario: Mapping[str, Any], path: Path) -> Path:
    """Draw a `scenario` of scenario.json to a .png, .svg or .pdf; `ConfigError` if the file cannot be written."""
    with drawing.in_light_theme() as page:
        return drawing.save_picture(_drawn(scenario), path, dpi=160, facecolor=page)


def holdings_picture(scenario: Mapping[str, Any], format: str, dpi: int) -> bytes:
    """Return the picture of a `scenario` as a file's content in a `format` such as "png", at `dpi` pixels an inch."""
    with drawing.in_light_theme() as page:
        return drawing.picture(_drawn(scenario), format, dpi=dpi, facecolor=page)


def _drawn(scenario: Mapping[str, Any]) -> Figure:
    return draw_holdings(scenario["class_counts"], scenario["classes"], owners(scenario))
