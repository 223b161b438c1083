"""Figures from tidy rows: panels of Axes, saved as PNG and SVG with the rows as CSV beside them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, sqrt
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from fedloom.core.files import write_atomic
from fedloom.results.formats import as_csv
from fedloom.results.report import axes, model_axes
from fedloom.results.report.axes import Rows
from fedloom.results.report.svg import color, in_light_theme

_LETTER = 0.075  # inches that one takes in a legend


@dataclass(frozen=True, slots=True)
class _Kind:
    """How rows are drawn: a panel's rows, all rows, the name of the axis. `keys`: what tells panels apart."""

    draw: Callable[[Axes, Rows, Rows, str], ScalarMappable | None]
    keys: tuple[str, ...] = ("panel",)
    width: float = 3.7  # inches of a panel
    height: float = 3.0
    bar: str = ""  # what the colour bar shows
    one_seed: bool = False
    most: int = 3  # panels side by side
    column: str = ""  # what tells the panels of one line apart, where there is such a key
    each: float = 0.0  # inches that a row takes of a panel's height, where rows lie below each other


_POINTS = _Kind(lambda ax, rows, every, _: model_axes.draw_points(ax, rows), ("panel", "row"), 3.2, 3.3, one_seed=True)
_SURFACES = _Kind(
    lambda ax, rows, every, _: model_axes.draw_surface(ax, rows, every),
    ("panel", "row"),
    *(3.3, 3.2),
    bar="cross-entropy (nats)",
    one_seed=True,
)
_KINDS = {
    "curves": _Kind(lambda ax, rows, every, _: axes.draw_lines(ax, rows, "", every)),
    "sweep": _Kind(lambda ax, rows, every, axis: axes.draw_lines(ax, rows, axis, every)),
    "clients": _Kind(lambda ax, rows, every, _: axes.draw_boxes(ax, rows, every)),
    "bars": _Kind(lambda ax, rows, every, _: axes.draw_bars(ax, rows, every), width=4.6, each=0.28),
    "costs": _Kind(lambda ax, rows, every, _: axes.draw_costs(ax, rows, every), width=4.2, height=3.4),
    "points": _POINTS,
    "local_points": _POINTS,
    "knowledge": _POINTS,
    "cohorts": _Kind(
        lambda ax, rows, every, _: model_axes.draw_cohorts(ax, rows), ("panel", "row"), 6.4, 3.0, one_seed=True, most=1
    ),
    "relations": _Kind(
        lambda ax, rows, every, _: model_axes.draw_relations(ax, rows, every),
        ("panel", "row", "matrix"),
        *(2.9, 3.0),
        bar="probability",
        one_seed=True,
        most=2,
    ),
    "norms": _Kind(
        lambda ax, rows, every, _: model_axes.draw_norms(ax, rows), ("panel", "row"), 4.6, 2.6, one_seed=True
    ),
    "drift": _Kind(lambda ax, rows, every, _: model_axes.draw_drift(ax, rows, every), ("panel", "row")),
    "residuals": _Kind(lambda ax, rows, every, _: model_axes.draw_residuals(ax, rows), width=4.6),
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
            bars.append(how.draw(ax, panel_rows, rows, axis))
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
            stream = io.BytesIO()
            drawn.savefig(stream, format=ending, dpi=160, metadata={"Date": None} if ending == "svg" else None)
            written.append(folder / f"figure.{ending}")
            write_atomic(written[-1], stream.getvalue())
    written.append(folder / "figure.csv")
    write_atomic(written[-1], as_csv([dict(row) for row in rows]) + "\n")
    return written


def _titles(panels: Sequence[tuple[str, ...]]) -> list[str]:
    """Of each panel, the words in which it differs from another one; all where there is one panel alone."""
    differing = [k for k in range(len(panels[0])) if len({panel[k] for panel in panels}) > 1] or [0]
    return [" · ".join(panel[k] for k in differing) for panel in panels]


def _explained(drawn: Figure, grid: Sequence[Axes], bar: ScalarMappable | None, how: _Kind) -> None:
    """The colour bar, and one legend for all panels, beside them."""
    width, height = drawn.get_size_inches()
    if bar is not None:
        scale = drawn.colorbar(bar, ax=list(grid), shrink=0.8, pad=0.02, format=FuncFormatter(lambda v, _: f"{v:.3g}"))
        scale.set_label(how.bar, color=color("muted"))
        scale.ax.tick_params(which="both", length=0, labelcolor=color("muted"), labelsize=8.5)
        scale.outline.set_visible(False)
        drawn.set_size_inches(width + 0.8, height)
    named = {label: handle for ax in grid for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if named:
        drawn.set_size_inches(width + 0.6 + _LETTER * max(map(len, named)), max(height, 0.3 + 0.19 * len(named)))
        drawn.legend(
            named.values(), named, loc="outside right upper", frameon=False, fontsize=8.5, labelcolor=color("ink")
        )
