"""A map of clients: near to each other where their labels are alike."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fedloom.core.errors import ConfigError
from fedloom.core.files import write_atomic
from fedloom.plots.palette import tone_name
from fedloom.report.axes import dressed
from fedloom.report.svg import color, in_light_theme

_TONES = 8  # groups with a colour of their own; the others are grey
_NAMED = 40  # clients that have their number beside the dot


def save_client_map(facts: Mapping[str, Any], path: Path) -> Path:
    """Draw the clients of a diagnosis to a .png, .svg or .pdf; returns `path`.

    Args:
        facts: what `Diagnosis.facts` returns.
        path: the file.

    Raises `ConfigError` if the file cannot be written.
    """
    with in_light_theme() as page:
        figure = draw_client_map(facts, page)
        stream = io.BytesIO()
        figure.savefig(stream, format=path.suffix.lower()[1:], dpi=160, facecolor=page)
    try:
        write_atomic(path, stream.getvalue())
    except OSError as error:
        raise ConfigError(f"{path}: the picture cannot be written there ({error.strerror})") from None
    return path


def draw_client_map(facts: Mapping[str, Any], page: str) -> Figure:
    """Return the map: a dot for each compared client, its area by samples, its colour by group.

    Args:
        facts: what `Diagnosis.facts` returns.
        page: colour of the page.
    """
    figure = Figure(figsize=(6.4, 4.6), layout="constrained", facecolor=page)
    ax = figure.subplots()
    groups, sizes, places = facts["groups"], facts["sizes"], facts["places"]
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    by_size = sorted(members.values(), key=len, reverse=True)
    largest = max(sizes, default=1)
    alone = [indices[0] for indices in by_size if len(indices) == 1]
    tones = [indices for indices in by_size if len(indices) > 1]
    drawn = [(f"{len(indices)} alike", indices, tone_name(k + 1)) for k, indices in enumerate(tones[:_TONES])]
    rest = [index for indices in tones[_TONES:] for index in indices]
    drawn += [("of smaller groups", rest, tone_name(0))] if rest else []
    drawn += [("like no other", alone, "muted")] if alone else []
    for label, indices, tone in drawn:
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
    ax.set_title("Clients by their labels", loc="left", fontsize=10, color=color("ink"))
    dressed(ax, "Hellinger distance, first direction", "second direction", grid="both")
    figure.legend(loc="outside right upper", frameon=False, fontsize=8.5, labelcolor=color("ink"))
    return figure
