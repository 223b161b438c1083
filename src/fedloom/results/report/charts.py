"""Charts of single clients and of the data: groups in, HTML figures out."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.core.text import listed, percent
from fedloom.results.group import selected_accuracies
from fedloom.results.plot_values import ChartRow
from fedloom.results.plots import drawing
from fedloom.results.plots.drawing import inline
from fedloom.results.plots.palette import shortened
from fedloom.results.report.class_results import majority_accuracy
from fedloom.results.report.line_charts import Dots, draw_dots, panels_of
from fedloom.results.report.markup import chart, chart_beside_skew


def client_spread(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render the accuracy of single clients where the protocol tests clients, a panel for each setting."""
    panels: dict[str, list[Dots]] = {}
    protocols: list[str] = []
    for row in rows:
        values = [value for result in row.group.results for value in selected_accuracies(result).values()]
        if values:
            dots = Dots(row.method, row.tone, values, majority_accuracy(row.group))
            panels.setdefault(row.panel, []).append(dots)
            protocols.append(row.row["protocol"])
    shown = listed(dict.fromkeys(protocols))
    caption = f"One dot per client and seed at the selected round, sorted, protocol {shown}. Line: median."
    if any(dots.majority is not None for members in panels.values() for dots in members):
        caption += " Dashed: mean over clients of the majority baseline."
    described = {}
    for panel, members in panels.items():
        words = "; ".join(f"{d.label} from {percent(min(d.values))} to {percent(max(d.values))} %" for d in members)
        title = f"Accuracy of single clients{f', {panel}' if panel else ''}"
        described[panel] = title, f"Test accuracy of each client: {words}."
    return panels_of(lambda panel, width: draw_dots(panels[panel], width), described, "clients", caption)


def holdings(name: str, scenario: dict[str, Any], caption: str) -> Markup:
    """Draw samples by client and class of a `scenario` (scenario.json), with its skew; `name` begins the ids."""
    counts, classes = scenario["class_counts"], scenario["classes"]
    largest = max(max(row) for row in counts)
    shown = f"the first {len(counts)} of {scenario['clients']:,}" if len(counts) < scenario["clients"] else "all"
    mark = "Largest bubble" if as_bubbles(counts) else "Strongest colour"
    label = (
        f"Training samples by client and class, {shown} clients and {len(classes)} classes; "
        f"the largest count is {largest}."
    )
    svg = inline(partial(draw_holdings, counts, classes, owners(scenario)), name, "Who holds what", label)
    picture = chart([svg], "Who holds what", f"{caption} {mark}: {largest:,} samples; {shown} clients.".strip())
    return chart_beside_skew(picture, scenario)


_WIDTH = 390.0  # CSS pixels at natural size
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
    owners: a word for each client, such as its domain; only bubbles have room for it."""
    bubbles = as_bubbles(counts)
    left = _LEFT + (min(max(map(len, owners)), _OWNER) * drawing.CHARACTER if owners and bubbles else 0)
    clients, width = len(counts), (_WIDTH - left - _RIGHT) / len(classes)
    pitch = min(max(width, 20.0), 32.0) if bubbles else max(400.0 / clients, 2.2)
    figure = drawing.new_figure(_WIDTH, _TOP + _BOTTOM + pitch * clients)
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
        # "none" keeps one pixel per cell in the SVG; other values resample to the size of the figure.
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
    # In points² for `scatter`, and at 72 dpi a point is a CSS pixel; at least 4, or single samples would vanish.
    areas = [max(across**2 * count / largest, 4.0) for _, _, count in held]
    x, y = [c for c, _, _ in held], [k for _, k, _ in held]
    axes.scatter(x, y, s=areas, color=drawing.color("p0"), alpha=0.85, linewidth=0, clip_on=False)
    for k, row in enumerate(counts):
        _beside(axes, f"{sum(row):,}", (1, 1 - (k + 0.5) / len(counts)), (_RIGHT, 0), "center_baseline")
    _beside(axes, "sum", (1, 1), (_RIGHT, 6), "bottom")


def _beside(axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], vertical: Vertical) -> None:
    """Right-aligned text: `at` as a fraction of the axes, `offset` in CSS pixels."""
    places: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "ha": "right", "va": vertical}
    look: dict[str, Any] = {"color": drawing.color("muted"), "fontsize": drawing.TEXT, "annotation_clip": False}
    axes.annotate(text, at, offset, **places, **look)


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
