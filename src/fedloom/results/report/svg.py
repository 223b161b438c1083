"""A matplotlib figure as inline SVG that takes its colours and fonts from the page.

Figures are drawn in stand-in colours (`color`), which become CSS custom properties here, so that one drawing serves
the light and the dark theme.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

from fedloom.results.plots.palette import TONES
from fedloom.results.report import markup
from fedloom.results.report.templates import asset

_NAMES = ("ink", "muted", "line", "page", "warn", *(f"c{k}" for k in range(TONES)), "p0", "p1", "p2", "p3", "p4")
_STAND_IN = {name: f"#fe{k:02x}fe" for k, name in enumerate(_NAMES)}
_RC: dict[Any, Any] = {  # Any: matplotlib spells its keys as literals
    "svg.fonttype": "none",
    "svg.hashsalt": "fedloom",
    "text.parse_math": False,  # a `$` in a config is no formula
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "path.simplify": True,
    "svg.image_inline": True,
}


_palette: ContextVar[Mapping[str, str]] = ContextVar("palette", default=_STAND_IN)


def color(name: str) -> str:
    """The colour to draw in for the custom property `--name` of the page."""
    return _palette.get()[name]


@contextmanager
def in_light_theme() -> Iterator[str]:
    """Within the block figures are drawn in the page's light colours, for files of their own; gives the page colour."""
    style = asset("style.css")
    light = dict(re.findall(r"--(\w+): (#\w+);", style[: style.index("}")]))
    token = _palette.set(light)
    try:
        with matplotlib.rc_context():
            matplotlib.rcdefaults()
            matplotlib.rcParams.update(_RC)
            yield light["page"]
    finally:
        _palette.reset(token)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure; width and height in SVG units (CSS pixels at natural size)."""
    return Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")


def inline(draw: Callable[[], Figure], name: str, title: str, description: str, css: str = "") -> Markup:
    """Draw a figure and return it as an `<svg>` element.

    Args:
        draw: makes the figure.
        name: prefix of its ids, unique in the page.
        title: short text for people who do not see it.
        description: longer text for people who do not see it.
        css: its classes.
    """
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the page's fonts have it
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        stream = io.StringIO()
        draw().savefig(stream, format="svg", facecolor="none", metadata={"Date": None})
    return _element(stream.getvalue(), name, title, description, css)


def _element(text: str, name: str, title: str, description: str, css: str) -> Markup:
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    body = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = _prefixed(body.replace("xlink:href", "href"), name)
    body = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", body)
    body = re.sub(r" font-family: [^;\"]+;", "", body)
    for key, stand_in in _STAND_IN.items():
        body = body.replace(stand_in, f"var(--{key})")
    body = re.sub(r"\n\s*", "\n", body).strip()
    return markup.svg(name, box[1], title, description, Markup(body), css)  # matplotlib has escaped the texts


def _prefixed(body: str, name: str) -> str:
    """Ids that are referred to, renumbered under the prefix; all others dropped."""
    used = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^)"]+)', body))
    new = {old: f"{name}-{k}" for k, old in enumerate(used)}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{new[m[1]]}"' if m[1] in new else "", body)
    return re.sub(r'(url\(|href=")#([^)"]+)', lambda m: f"{m[1]}#{new[m[2]]}", body)
