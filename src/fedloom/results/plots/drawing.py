"""The one renderer: figures of a paper and charts of a page are drawn by these functions, each in its style.
Charts are drawn in stand-in colours (`color`), which become CSS custom properties in a page: one drawing serves its
light and its dark theme. In files they are the colours of the light theme."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedloom.core.errors import ConfigError
from fedloom.core.files import write_atomic
from fedloom.results.plots.palette import TONES, Curve, Estimate, dash, tone_name
from fedloom.results.report import markup


@dataclass(frozen=True, slots=True)
class Style:
    """Sizes in points: of names, of ticks and values, of lines, of grid lines and of dots; pad: ticks to labels."""

    text: float
    ticks: float
    line: float
    grid: float
    dot: float
    pad: float


TEXT = 12.0  # CSS pixels at natural size
PAGE = Style(TEXT, TEXT, 2.0, 1.0, 8.0, 6.0)  # charts of a page, whose units are CSS pixels
PAPER = Style(7.5, 6.5, 1.2, 0.6, 4.5, 3.0)  # figures in a column of a paper
FILE = Style(10.0, 8.5, 1.6, 0.8, 4.0, 3.5)  # pictures in files of their own

CHARACTER = 7.2  # CSS pixels that one takes in a name of a page
_NAMES = ("ink", "muted", "line", "page", "warn", *(f"c{k}" for k in range(TONES)), "p0", "p1", "p2", "p3", "p4")
# Colours that no chart has otherwise: replacing their text in the SVG changes nothing else.
_STAND_IN = {name: f"#fe{k:02x}fe" for k, name in enumerate(_NAMES)}
_palette: ContextVar[Mapping[str, str]] = ContextVar("palette", default=_STAND_IN)
_RC: dict[Any, Any] = {  # Any: matplotlib spells its keys as literals
    "svg.fonttype": "none",
    "svg.hashsalt": "fedloom",  # random by default, and the ids depend on it
    "pdf.fonttype": 42,  # whole TrueType fonts, which journals ask for
    "text.parse_math": False,  # a `$` in a name is no formula
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
}
_SECTIONS = ("axes", "xtick", "ytick", "lines", "font", "legend", "text", "patch", "savefig", "svg", "path", "figure")


def color(name: str) -> str:
    """Return the colour to draw in for the custom property `--name` of the page."""
    return _palette.get()[name]


def stroke(tone: int) -> dict[str, Any]:
    """Return the colour and the line style of a tone."""
    return {"color": color(tone_name(tone)), "linestyle": dash(tone)}


def light_colors() -> dict[str, str]:
    """Return the colours of the page's light theme by their names."""
    style = markup.asset("style.css")
    return dict(re.findall(r"--(\w+): (#\w+);", style[: style.index("}")]))


@contextmanager
def in_light_theme(settings: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Draw figures in the page's light colours, for picture files, with further settings; yields the background."""
    light = light_colors()
    token = _palette.set(light)
    try:
        with _plain_settings(settings or {}):
            yield light["page"]
    finally:
        _palette.reset(token)


@contextmanager
def _plain_settings(settings: Mapping[Any, Any]) -> Iterator[None]:
    # The settings of the user would change the pictures; the backend stays.
    names: list[Any] = [key for key in matplotlib.rcParamsDefault if key.partition(".")[0] in _SECTIONS]
    with matplotlib.rc_context():
        matplotlib.rcParams.update({key: matplotlib.rcParamsDefault[key] for key in names} | _RC | dict(settings))
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in SVG units (CSS pixels at natural size)."""
    return Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")


def save_picture(figure: Figure, path: Path, **keys: Any) -> Path:
    """Write a figure to a .png, .svg or .pdf, whole or not at all; same values, same bytes. Raises `ConfigError`."""
    try:
        write_atomic(path, picture(figure, path.suffix.lower()[1:], **keys))
    except OSError as error:
        raise ConfigError(f"{path}: the picture cannot be written there ({error.strerror})") from None
    return path


def picture(figure: Figure, format: str, **keys: Any) -> bytes:
    """Return a figure as the content of a file. format: "png", "svg" or "pdf". keys: as of `Figure.savefig`."""
    stream, dated = io.BytesIO(), {"pdf": "CreationDate", "svg": "Date"}.get(format)
    # Without a date, the same values give the same bytes.
    figure.savefig(stream, format=format, metadata={dated: None} if dated else None, **keys)
    return stream.getvalue()


def inline(draw: Callable[[], Figure], name: str, title: str, description: str, css: str = "") -> Markup:
    """Draw a figure and return it as an `<svg>` element with the classes `css`.
    `name` is the prefix of its ids, unique in the page; `title` and `description` are for people who do not see it."""
    with _plain_settings({}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # the page's fonts have it
        text = picture(draw(), "svg", facecolor="none").decode()
    box = re.search(r'viewBox="([^"]+)"', text)
    assert box is not None
    body = text[text.index(">", text.index("<svg")) + 1 : text.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = _prefixed(body.replace("xlink:href", "href"), name)
    body = re.sub(r"font: ([\d.]+)px [^;\"]+", r"font-size: \1px", body)
    body = re.sub(r" font-family: [^;\"]+;", "", body)
    for custom_property, stand_in in _STAND_IN.items():
        body = body.replace(stand_in, f"var(--{custom_property})")
    body = re.sub(r"\n\s*", "\n", body).strip()
    return markup.svg(name, box[1], title, description, Markup(body), css)  # matplotlib has escaped the texts


def _prefixed(body: str, name: str) -> str:
    """Ids that are referred to, renumbered under the prefix; all others dropped."""
    used = dict.fromkeys(re.findall(r'(?:url\(|href=")#([^)"]+)', body))
    new = {old: f"{name}-{k}" for k, old in enumerate(used)}
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{new[m[1]]}"' if m[1] in new else "", body)
    return re.sub(r'(url\(|href=")#([^)"]+)', lambda m: f"{m[1]}#{new[m[2]]}", body)


def place(figure: Figure, left: float, top: float, right: float, bottom: float) -> Axes:
    """Return bare axes on a `figure`; `left`, `top`, `right`, `bottom`: margins in CSS pixels."""
    width, height = 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    box = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    axes = figure.add_axes(box)
    axes.set_facecolor("none")
    dress(axes, PAGE, grid=None)
    return axes


def dress(axes: Axes, style: Style, x: str = "", y: str = "", grid: Any = "y") -> None:
    """Name the axes (`x`, `y`), and set ticks and grid ("x", "y", "both" or None) in a `style`, without a frame."""
    pad = 5.0 if style is PAGE else 4.0
    axes.set_xlabel(x, color=color("muted"), fontsize=style.text, labelpad=pad)
    axes.set_ylabel(y, color=color("muted"), fontsize=style.text, labelpad=pad)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(which="both", length=0, labelcolor=color("muted"), labelsize=style.ticks, pad=style.pad)
    if grid:
        axes.grid(axis=grid, color=color("line"), linewidth=style.grid)
        axes.set_axisbelow(True)


def draw_curve(axes: Axes, curve: Curve, style: Style, band: float, **look: Any) -> None:
    """Draw the mean of a `curve` as a line in a `style`, and its deviation as a `band` of this opacity."""
    if curve.faint:
        axes.plot(curve.rounds, curve.mean, color=color("muted"), alpha=0.4, linewidth=0.9)
        return
    line = stroke(curve.tone)
    if curve.std is not None:
        spread = list(zip(curve.mean, curve.std, strict=True))
        low, high = [mean - std for mean, std in spread], [mean + std for mean, std in spread]
        axes.fill_between(curve.rounds, low, high, color=line["color"], alpha=band, linewidth=0)
    axes.plot(curve.rounds, curve.mean, linewidth=style.line, **line, **look)


def draw_estimate(axes: Axes, estimate: Estimate, row: float, style: Style) -> None:
    """Draw the mean of an `estimate` as a dot in its `row` in a `style`, with its interval as a line."""
    tint = color(tone_name(estimate.tone))
    if estimate.bounds is not None:
        axes.plot(estimate.bounds, (row, row), color=tint, linewidth=1.2 * style.line, solid_capstyle="butt")
    face = color("page") if estimate.hollow else tint
    axes.plot(estimate.mean, row, "o", color=tint, markerfacecolor=face, markersize=style.dot, label=estimate.method)
