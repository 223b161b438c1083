"""A map of clients: near to each other where their labels are alike."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedloom.core.errors import ConfigError
from fedloom.core.files import write_atomic
from fedloom.results.plots.palette import tone_name
from fedloom.results.report.axes import dressed
from fedloom.results.report.svg import color, in_light_theme, new_figure

_TONES = 8  # groups with a colour of their own; the others are grey
_NAMED = 40  # clients that have their number beside the dot
_FILE_SIZE = (460.8, 331.2)  # of a picture file, in points
_NARROW = 420  # points below which the legend stands below the map


def save_client_map(facts: Mapping[str, Any], path: Path) -> Path:
    """Draw the clients of a diagnosis to a .png, .svg or .pdf; returns `path`.

    Args:
        facts: what `Diagnosis.facts` returns.
        path: the file.

    Raises `ConfigError` if the file cannot be written.
    """
    with in_light_theme() as page:
        figure = draw_client_map(facts, _FILE_SIZE)
        figure.axes[0].set_title("Clients by their labels; area: samples", loc="left", fontsize=10, color=color("ink"))
        stream = io.BytesIO()
        figure.savefig(stream, format=path.suffix.lower()[1:], dpi=160, facecolor=page)
    try:
        write_atomic(path, stream.getvalue())
    except OSError as error:
        raise ConfigError(f"{path}: the picture cannot be written there ({error.strerror})") from None
    return path


def draw_client_map(facts: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Return the map: a dot for each compared client, its area by samples, its colour by group.

    Args:
        facts: clients, groups, sizes and places, as `Diagnosis.facts` has them; `unit` names the distance.
        size: width and height in points.
    """
    figure = new_figure(*size)
    figure.set_layout_engine("constrained")
    ax = figure.subplots()
    sizes, places = facts["sizes"], facts["places"]
    largest = max(sizes, default=1)
    groups = _groups(facts["groups"])
    for label, indices, tone in groups:
        ax.scatter(
            [places[k][0] for k in indices],
            [places[k][1] for k in indices],
            s=[20 + 180 * sizes[k] / largest for k in indices],
            color=color(tone),
            alpha=0.75,
            linewidths=0,
            label=label,
        )
    if len(places) <= _NAMED:
        for client, (x, y) in zip(facts["clients"], places, strict=True):
            ax.annotate(
                str(client), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7.5, color=color("ink")
            )
    ax.set_aspect("equal", adjustable="datalim")
    dressed(ax, f"{facts.get('unit', 'Hellinger distance')}, first direction", "second direction", grid="both")
    narrow = size[0] < _NARROW
    legend = figure.legend(
        loc="outside lower center" if narrow else "outside right upper",
        ncols=3 if narrow else 1,
        frameon=False,
        fontsize=8.5,
        labelcolor=color("ink"),
    )
    for handle in legend.legend_handles:
        handle.set_sizes([50])  # type: ignore[union-attr]  # the handles of a scatter plot
    return figure


def _groups(numbers: Sequence[int]) -> list[tuple[str, list[int], str]]:
    """Label, clients and colour of what the legend tells apart, the largest group first."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(numbers):
        members.setdefault(group, []).append(index)
    by_size = sorted(members.values(), key=len, reverse=True)
    alone = [indices[0] for indices in by_size if len(indices) == 1]
    several = [indices for indices in by_size if len(indices) > 1]
    drawn = [(f"{len(indices)} alike", indices, tone_name(k + 1)) for k, indices in enumerate(several[:_TONES])]
    rest = [index for indices in several[_TONES:] for index in indices]
    drawn += [("of smaller groups", rest, tone_name(0))] if rest else []
    return drawn + ([("like no other", alone, "muted")] if alone else [])
