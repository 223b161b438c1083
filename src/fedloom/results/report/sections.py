"""Sections that other packages add to the page, and their pictures: plain values in, HTML out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedloom.results.page_sections import Block, PageSection, SectionPicture
from fedloom.results.plots.drawing import FILE, color, dress, in_light_theme, inline, new_figure, save_picture
from fedloom.results.plots.palette import tone_name
from fedloom.results.report.markup import bullets, chart, paragraph, section, table

_TONES = {"local": "p0", "sampling": "p2", "server": "p4"}
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
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5, labelcolor=color("ink"))
    return figure


def _figure(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = new_figure(*size)
    figure.set_layout_engine("constrained")
    ax = figure.subplots()
    ax.set_facecolor("none")
    return figure, ax


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
