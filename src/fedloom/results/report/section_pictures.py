"""The pictures of sections that other packages add to the page: plain values in, HTML figures out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from fedloom.results.page_sections import SectionPicture
from fedloom.results.report.client_map import draw_client_map
from fedloom.results.report.drift_charts import draw_matrix, draw_parts, draw_round_lines, draw_weights
from fedloom.results.report.markup import chart
from fedloom.results.report.svg import inline

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
    """Render a picture twice, for wide and for narrow screens.

    Args:
        section: id of its section.
        picture: what is drawn.
    """
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
