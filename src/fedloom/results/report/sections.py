"""Sections that other packages add to the page, and their pictures: plain values in, HTML out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.results.page_sections import Block, PageSection, SectionPicture
from fedloom.results.plots.drawing import (
    FILE,
    color,
    draw_curve,
    dress,
    in_light_theme,
    inline,
    new_figure,
    save_picture,
)
from fedloom.results.plots.palette import Curve, tone_name
from fedloom.results.report.markup import bullets, chart, paragraph, section, table

_TONES = {"local": "p0", "sampling": "p2", "server": "p4"}
_POSITIVE, _NEGATIVE = (0.20, 0.49, 0.75), (0.85, 0.45, 0.10)  # mixed by opacity, which suits light and dark pages
_WRITTEN = 10  # clients of a matrix whose cells have room for numbers
_NARROW = 420


def draw_parts(values: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw a list of lengths for each of the `parts` as stacked bars by round; negative ones stand below zero."""
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
    dress(ax, FILE, "round", "drift (length of weights)")
    return _with_legend(figure)


def draw_round_lines(values: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw `lines` of values by round, with their `unit`; None leaves a gap, or a point alone."""
    figure, ax = _figure(size)
    for tone, (label, numbers) in enumerate(values["lines"].items(), 1):
        known = [(round_, value) for round_, value in zip(values["rounds"], numbers, strict=True) if value is not None]
        mark = "o" if len(known) < 30 else None
        rounds, heights = zip(*known, strict=True)
        curve = Curve(label, tone, rounds, heights, None)
        draw_curve(ax, curve, FILE, 0.0, marker=mark, markersize=FILE.dot, label=label)
    ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    dress(ax, FILE, "round", values["unit"])
    return _with_legend(figure)


def draw_matrix(values: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw `cells` [k][k] of pairs of clients as opacities, with numbers where there is room; None is an empty cell."""
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
    dress(ax, FILE, "client", "client", grid=None)
    return figure


def draw_weights(values: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw the weight of each client as a bar, and equal weights as a line."""
    figure, ax = _figure(size)
    clients, weights = values["clients"], values["weights"]
    places = range(len(clients))
    ax.bar(places, weights, 0.8, color=color("p0"))
    ax.set_ylim(0, 1.12 * max(*weights, 1 / len(clients)))
    ax.axhline(1 / len(clients), color=color("p2"), linewidth=1.6, linestyle=(0, (4, 3)))
    step = -(-len(clients) // (10 if size[0] < _NARROW else 20))
    ax.set_xticks(places[::step], [str(client) for client in clients[::step]])
    dress(ax, FILE, "client", "weight in the mean")
    return figure


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = new_figure(*size)
    figure.set_layout_engine("constrained")
    ax = figure.subplots()
    ax.set_facecolor("none")
    return figure, ax


def _with_legend(figure: Figure) -> Figure:
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5, labelcolor=color("ink"))
    return figure


_GROUP_TONES = 8  # largest groups, which get distinct colours; smaller ones are grey
_NAMED = 40  # up to this many clients, each dot is labelled
_FILE_SIZE = (460.8, 331.2)  # of a picture file, in points


def save_client_map(facts: Mapping[str, Any], path: Path) -> Path:
    """Draw the clients of a diagnosis (`Diagnosis.facts`) to a .png, .svg or .pdf; `ConfigError` if it cannot be
    written."""
    with in_light_theme() as page:
        figure = draw_client_map(facts, _FILE_SIZE)
        figure.axes[0].set_title("Clients by their labels; area: samples", loc="left", fontsize=10, color=color("ink"))
        return save_picture(figure, path, dpi=160, facecolor=page)


def draw_client_map(facts: Mapping[str, Any], size: tuple[float, float]) -> Figure:
    """Draw a dot for each client of `Diagnosis.facts`, its area by samples, its colour by group; `unit` names the
    distance."""
    figure, ax = _figure(size)
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
    # One scale for both directions, because the map shows distances.
    ax.set_aspect("equal", adjustable="datalim")
    dress(ax, FILE, f"{facts.get('unit', 'Hellinger distance')}, first direction", "second direction", grid="both")
    narrow = size[0] < _NARROW
    legend = figure.legend(
        loc="outside lower center" if narrow else "outside right upper",
        ncols=3 if narrow else 1,
        frameon=False,
        fontsize=8.5,
        labelcolor=color("ink"),
    )
    # By default a legend shows sizes of the group's dots, which mean nothing there.
    for handle in legend.legend_handles:
        handle.set_sizes([50])  # type: ignore[union-attr]  # the handles of a scatter plot
    return figure


def _groups(numbers: Sequence[int]) -> list[tuple[str, list[int], str]]:
    """Legend entries, largest group first: label, client ids, colour."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(numbers):
        members.setdefault(group, []).append(index)
    by_size = sorted(members.values(), key=len, reverse=True)
    alone = [indices[0] for indices in by_size if len(indices) == 1]
    several = [indices for indices in by_size if len(indices) > 1]
    drawn = [(f"{len(indices)} alike", indices, tone_name(k + 1)) for k, indices in enumerate(several[:_GROUP_TONES])]
    rest = [index for indices in several[_GROUP_TONES:] for index in indices]
    drawn += [("of smaller groups", rest, tone_name(0))] if rest else []
    return drawn + ([("like no other", alone, "muted")] if alone else [])


# Draws from the values of a picture, at a width and height in SVG units.
Drawing = Callable[[Mapping[str, Any], tuple[float, float]], Figure]

DRAWINGS: Mapping[str, Drawing] = {
    "client map": draw_client_map,
    "drift parts": draw_parts,
    "lines by round": draw_round_lines,
    "client matrix": draw_matrix,
    "client weights": draw_weights,
}
_SIZES = (("wide", (640.0, 420.0)), ("narrow", (360.0, 400.0)))


def picture_block(section: str, picture: SectionPicture) -> Markup:
    """Render a picture of a section twice, for wide and for narrow screens."""
    svgs = [
        inline(
            partial(DRAWINGS[picture.kind], picture.values, size),
            f"{section}-{picture.name}-{css}",
            picture.title,
            picture.description,
            css,
        )
        for css, size in _SIZES
    ]
    return chart(svgs, picture.title, picture.caption, wide=True)


def render_section(part: PageSection) -> Markup:
    """Render a section."""
    return section(part.title, part.name, [_block(part, block) for block in part.blocks if block], "part")


def _block(part: PageSection, block: Block) -> Markup:
    if isinstance(block, str):
        return paragraph(block)
    if isinstance(block, SectionPicture):
        return picture_block(part.name, block)
    if isinstance(block, list):
        return bullets(block)
    return table(replace(block, name=f"{part.name}-{block.name}"))
