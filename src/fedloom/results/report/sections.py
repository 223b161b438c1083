"""Sections that other packages add to the page, and their picture of drift: plain values in, HTML out."""

from dataclasses import replace
from functools import partial

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from fedloom.results.page_sections import Block, PageSection, SectionPicture
from fedloom.results.plots.drawing import FILE, color, dress, inline, new_figure
from fedloom.results.report.markup import bullets, chart, paragraph, section, table

_TONES = ("p0", "p2", "p4")
_NARROW = 420


def draw_parts(picture: SectionPicture, size: tuple[float, float]) -> Figure:
    """Draw the parts as stacked bars by round, at a width and height in SVG units; negative ones stand below zero."""
    figure = new_figure(*size)
    figure.set_layout_engine("constrained")
    ax = figure.subplots()
    ax.set_facecolor("none")
    rounds = picture.rounds
    places = range(len(rounds))
    above, below = np.zeros(len(rounds)), np.zeros(len(rounds))
    for tone, (part, heights) in zip(_TONES, picture.parts.items(), strict=True):
        height = np.asarray(heights, dtype=float)
        ax.bar(places, height, 0.8, np.where(height < 0, below, above), color=color(tone), label=part)
        above, below = above + height.clip(min=0), below + height.clip(max=0)
    ax.axhline(0, color=color("muted"), linewidth=0.8)
    step = -(-len(rounds) // (8 if size[0] < _NARROW else 16))
    ax.set_xticks(places[::step], [str(round_) for round_ in rounds[::step]])
    dress(ax, FILE, "round", "drift (length of weights)")
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5, labelcolor=color("ink"))
    return figure


def picture_block(section: str, picture: SectionPicture) -> Markup:
    """Render a picture of a section twice, for wide and for narrow screens."""
    svgs = [
        inline(partial(draw_parts, picture, size), f"{section}-{picture.name}-{css}", picture.title, picture.text, css)
        for css, size in (("wide", (640.0, 420.0)), ("narrow", (360.0, 400.0)))
    ]
    return chart(svgs, picture.title, picture.caption, wide=True)


def render_section(part: PageSection) -> Markup:
    """Render a section."""
    return section(part.title, part.name, [render_block(part.name, block) for block in part.blocks if block], "part")


def render_block(section: str, block: Block) -> Markup:
    """Render a block of the section with this name."""
    if isinstance(block, str):
        return paragraph(block)
    if isinstance(block, SectionPicture):
        return picture_block(section, block)
    if isinstance(block, list):
        return bullets(block)
    return table(replace(block, name=f"{section}-{block.name}"))
