"""Matplotlib as the page has it: inline SVG in the colours and fonts of the page, and accuracies on Axes.

Figures are drawn in stand-in colours (`color`), which become CSS custom properties here: one drawing serves
the light and the dark theme. Rows are tidy: `row` names the method, `accuracy` is in percent, each docstring defines
`x`. Where rows are one panel of several, `among` has the rows of all panels: a method looks the same in each.
"""

from __future__ import annotations

import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from math import nan
from typing import Any

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedloom.results.group import mean_std
from fedloom.results.plots.palette import TONES, dash, tone_name
from fedloom.results.report import markup
from fedloom.results.report.markup import asset
from fedloom.results.verdict import BASELINE

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
    """Draw figures in the page's light colours, for picture files; yields the background colour."""
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

    draw: makes the figure. name: prefix of its ids, unique in the page. title: short text for people who do not see it.
    description: longer text for people who do not see it. css: its classes.
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


Rows = Sequence[Mapping[str, Any]]
ACCURACY = "test accuracy (%)"
SHAPES = ("o", "s", "^", "D", "v")
_FEW = 6  # lines; of more, bands only blur the picture
_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
_GOLDEN = 0.618034  # spreads dots evenly without a random number
_FLOPS_AREA = 320.0  # of the dearest run's marker, in points²


def draw_lines(ax: Axes, rows: Rows, axis: str = "", among: Rows | None = None) -> None:
    """Mean accuracy by `x`, a line for each row, and the sample deviation over seeds as a band.

    rows: rows of one panel, with `row`, `x`, `seed` and `accuracy` in percent. axis: the label of x; it is a round
    unless said. A line has a gap where its row has no value at an `x` of the panel; rounds are those of the row's own
    tests. Where means are over unequal numbers of values, the legend says how many. among: the rows of all panels,
    which share colours; None takes `rows`.
    """
    every, sizes = strokes(among or rows), _sizes(among or rows, "x")
    places = {row["x"] for row in rows}
    for label, stroke in every.items():
        by_x: dict[Any, list[float]] = {}
        for row in rows:
            if row["row"] == label:
                by_x.setdefault(row["x"], []).append(row["accuracy"])
        if not by_x:
            continue
        xs = sorted(places if axis else by_x)
        stats = [mean_std(by_x[x]) if x in by_x else (nan, nan) for x in xs]
        means = [mean for mean, _ in stats]
        mark = "o" if len(xs) < 12 or len(by_x) < len(xs) else None  # a point between two gaps has no line
        named = f"{label} ({_n(sizes[label])})" if sizes else label
        ax.plot(xs, means, marker=mark, markersize=4, linewidth=1.6, label=named, **stroke)
        low = [mean - (std or 0.0) for mean, std in stats]
        high = [mean + (std or 0.0) for mean, std in stats]
        band = 0.15 if len(every) <= _FEW else 0.05
        ax.fill_between(xs, low, high, color=stroke["color"], alpha=band, linewidth=0)
    dressed(ax, axis or "round", ACCURACY)
    if axis and min(places) > 0 and max(places) >= 50 * min(places):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(_PLAIN)
    elif not axis:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def draw_boxes(ax: Axes, rows: Rows, among: Rows | None = None) -> None:
    """Accuracies of single clients (`x`: the client), a box and a dot a client for each row; the mean as a cross.

    A box pools the clients of all seeds. Where boxes have unequal numbers of clients, each states its own.

    rows: rows of one panel, with `row`, `x`, `seed` and `accuracy` in percent. among: the rows of all panels, which
    share colours; None takes `rows`.
    """
    every, unequal = strokes(among or rows), _sizes(among or rows, "row")
    labels = []
    for index, (label, stroke) in enumerate(every.items()):
        values = [row["accuracy"] for row in rows if row["row"] == label]
        labels.append(f"{label}\n{_n([len(values)])}" if unequal else label)
        if not values:
            continue
        lines: dict[str, Any] = {name: {"color": color("muted")} for name in ("boxprops", "whiskerprops", "capprops")}
        ax.boxplot(
            [values],
            positions=[index],
            widths=0.62,
            showfliers=False,
            showmeans=True,
            medianprops={"color": stroke["color"], "linewidth": 2.2},
            meanprops={"marker": "+", "markeredgecolor": color("ink"), "markersize": 9},
            **lines,
        )
        at = [index - 0.22 + 0.44 * ((k * _GOLDEN) % 1.0) for k in range(len(values))]
        ax.plot(at, values, "o", color=stroke["color"], markersize=3.5, alpha=0.45, mew=0)
    ax.set_xticks(range(len(labels)), labels, rotation=20 if sum(map(len, labels)) > 30 else 0)
    dressed(ax, "", ACCURACY)


def draw_bars(ax: Axes, rows: Rows, among: Rows | None = None) -> None:
    """Mean accuracy, a bar for each row from zero on, with the sample deviation over seeds and the value in words.

    Rows of one `group` stand together, in order of appearance; then the groups are named, and a legend has the rows.
    Where means are over unequal numbers of values, each says of how many.

    rows: rows of one panel, with `row`, `group`, `seed` and `accuracy` in percent. among: the rows of all panels, which
    share colours; None takes `rows`.
    """
    every, groups = strokes(among or rows), list(dict.fromkeys(row.get("group", "") for row in rows))
    unequal = _sizes(among or rows, "group")
    apart = len(every) + (len(groups) > 1)
    for at, group in enumerate(groups):
        for index, (label, stroke) in enumerate(every.items(), start=at * apart):
            values = [row["accuracy"] for row in rows if (row["row"], row.get("group", "")) == (label, group)]
            if not values:
                continue
            mean, std = mean_std(values)
            bar = ax.barh(index, mean, height=0.66, color=stroke["color"], alpha=0.85)
            if len(groups) > 1:
                bar.set_label(label)
            ax.errorbar(mean, index, xerr=std or 0.0, color=color("ink"), capsize=2.5, linewidth=1)
            label_text = f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"
            label_text += f", {_n([len(values)])}" if unequal else ""
            ax.annotate(
                label_text,
                (mean + (std or 0.0), index),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=color("ink"),
            )
    if len(groups) > 1:
        ax.set_yticks([at * apart + (len(every) - 1) / 2 for at in range(len(groups))], groups)
    else:
        ax.set_yticks(range(len(every)), list(every))
    ax.invert_yaxis()
    ax.set_xlim(0, (1.5 if unequal else 1.3) * max(row["accuracy"] for row in rows))  # room for the words
    dressed(ax, ACCURACY, "", grid="x")


def draw_costs(ax: Axes, rows: Rows, among: Rows | None = None) -> None:
    """Accuracy against the `bytes` that travelled: a marker a run, its shape by `x` (the setting), its area by `flops`.

    Where the costs span two decades or more, their axis is logarithmic.

    rows: rows of one panel, with `row`, `x`, `bytes`, `flops` and `accuracy` in percent. among: the rows of all panels,
    which share colours and areas; None takes `rows`.
    """
    every = among or rows
    settings = list(dict.fromkeys(row["x"] for row in every))
    dearest = max(row["flops"] for row in every) or 1.0
    for label, stroke in strokes(every).items():
        for shape, setting in zip(SHAPES * len(settings), settings, strict=False):
            matching_rows = [row for row in rows if (row["row"], row["x"]) == (label, setting)]
            ax.scatter(
                [row["accuracy"] for row in matching_rows],
                [row["bytes"] / 1e6 for row in matching_rows],
                s=[24 + _FLOPS_AREA * row["flops"] / dearest for row in matching_rows],
                marker=shape,
                color=stroke["color"],
                alpha=0.6,
                linewidth=0,
            )
        ax.plot([], [], "o", color=stroke["color"], label=label)
    for shape, setting in zip(SHAPES * len(settings), settings, strict=False):
        ax.plot([], [], shape, color=color("muted"), markerfacecolor="none", label=setting)
    sent = [row["bytes"] for row in every]
    if min(sent) > 0 and max(sent) >= 100 * min(sent):
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(_PLAIN)
    ax.margins(0.12)
    dressed(ax, f"{ACCURACY}\narea: FLOPs, largest {dearest:.2g}", "sent until the target (MB)")


def _sizes(rows: Rows, key: str) -> dict[str, list[int]]:
    """Over how many values the means of each row are, one mean a panel and `key`; empty where all are over equally
    many."""
    counts: Counter[tuple[Any, ...]] = Counter((row["row"], row.get("panel"), row.get(key, "")) for row in rows)
    if len(set(counts.values())) < 2:
        return {}
    sizes: dict[str, list[int]] = {}
    for (label, *_), n in counts.items():
        sizes.setdefault(label, []).append(n)
    return sizes


def _n(sizes: Sequence[int]) -> str:
    smallest, largest = min(sizes), max(sizes)
    return f"n = {largest}" if smallest == largest else f"n = {smallest} to {largest}"


def strokes(rows: Rows) -> dict[str, dict[str, Any]]:
    """Colour and dash of every row's label, in order of appearance; FedAvg has the baseline's grey."""
    labels = list(dict.fromkeys(row["row"] for row in rows))
    baseline = next((label for label in labels if label.lower().startswith(BASELINE)), None)
    others = count(1)
    tones = {label: 0 if label == baseline else next(others) for label in labels}
    return {label: {"color": color(tone_name(tone)), "linestyle": dash(tone)} for label, tone in tones.items()}


def dressed(ax: Axes, x: str, y: str, grid: Any = "y") -> None:
    """Set the names of the axes, ticks and grid as the report has them.

    grid: of "x", of "y", or None.
    """
    ax.set_xlabel(x, color=color("muted"))
    ax.set_ylabel(y, color=color("muted"))
    for side in ax.spines.values():
        side.set_visible(False)
    ax.tick_params(which="both", length=0, labelcolor=color("muted"), labelsize=8.5)
    if grid:
        ax.grid(axis=grid, color=color("line"), linewidth=0.8)
        ax.set_axisbelow(True)
