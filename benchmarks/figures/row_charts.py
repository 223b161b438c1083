"""Accuracies of tidy rows, as papers plot them: lines, boxes, bars and costs.

`row` names the method, `accuracy` is in percent, each docstring defines `x`. `rows` are those of one panel, and `every`
are those of all panels: a method looks the same in each. `axis` is the name of a sweep's axis.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedloom.core.text import BASELINE
from fedloom.results.group import mean_std
from fedloom.results.plots.drawing import FILE, color, draw_curve, dress, stroke
from fedloom.results.plots.palette import Curve, Estimate, tone_name, tones_of

Rows = Sequence[Mapping[str, Any]]
ACCURACY = "test accuracy (%)"
SHAPES = ("o", "s", "^", "D", "v")
_FEW = 6  # lines; of more, bands only blur the picture
_PLAIN = FuncFormatter(lambda value, _: f"{value:g}")
_GOLDEN = 0.618034  # spreads dots evenly without a random number
_FLOPS_AREA = 320.0  # of the dearest run's marker, in points²


def row_tones(rows: Rows) -> dict[str, int]:
    """Return the tone of every row's label, in order of appearance; FedAvg has the baseline's grey."""
    labels = list(dict.fromkeys(row["row"] for row in rows))
    return tones_of(labels, next((label for label in labels if label.lower().startswith(BASELINE)), None))


def draw_lines(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Draw on `ax` mean accuracy of `rows` by `x`, a round unless `axis` names it, with bands of the deviation over
    seeds.

    A line has a gap where its row has no value at an `x` of the panel; the legend says how many values a mean has, if
    they differ.
    """
    tones, sizes = row_tones(every), _sizes(every, "x")
    places = {row["x"] for row in rows}
    for label, tone in tones.items():
        by_x: dict[Any, list[float]] = {}
        for row in rows:
            if row["row"] == label:
                by_x.setdefault(row["x"], []).append(row["accuracy"])
        if not by_x:
            continue
        xs = sorted(places if axis else by_x)
        stats = [mean_std(by_x[x]) if x in by_x else (nan, nan) for x in xs]
        curve = Curve(label, tone, xs, [mean for mean, _ in stats], [std or 0.0 for _, std in stats])
        mark = "o" if len(xs) < 12 or len(by_x) < len(xs) else None  # a point between two gaps has no line
        named = f"{label} ({_n(sizes[label])})" if sizes else label
        band = 0.15 if len(tones) <= _FEW else 0.05
        draw_curve(ax, curve, FILE, band, marker=mark, markersize=FILE.dot, label=named)
    dress(ax, FILE, axis or "round", ACCURACY)
    if axis and min(places) > 0 and max(places) >= 50 * min(places):
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(_PLAIN)
    elif not axis:
        ax.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))


def draw_boxes(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Draw on `ax` accuracies of single clients (`x`) of all seeds: a box and dots, a cross at the mean. `rows` are of
    `every`."""
    unequal = _sizes(every, "row")
    labels = []
    for index, (label, tone) in enumerate(row_tones(every).items()):
        values = [row["accuracy"] for row in rows if row["row"] == label]
        labels.append(f"{label}\n{_n([len(values)])}" if unequal else label)
        if not values:
            continue
        tint = stroke(tone)["color"]
        lines: dict[str, Any] = {name: {"color": color("muted")} for name in ("boxprops", "whiskerprops", "capprops")}
        ax.boxplot(
            [values],
            positions=[index],
            widths=0.62,
            showfliers=False,
            showmeans=True,
            medianprops={"color": tint, "linewidth": 2.2},
            meanprops={"marker": "+", "markeredgecolor": color("ink"), "markersize": 9},
            **lines,
        )
        at = [index - 0.22 + 0.44 * ((k * _GOLDEN) % 1.0) for k in range(len(values))]
        ax.plot(at, values, "o", color=tint, markersize=3.5, alpha=0.45, mew=0)
    ax.set_xticks(range(len(labels)), labels, rotation=20 if sum(map(len, labels)) > 30 else 0)
    dress(ax, FILE, "", ACCURACY)


def draw_bars(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Draw on `ax` mean accuracy of `rows`, a panel of `every`, as bars with deviation over seeds and value in words.

    Rows of one `group` stand together, and then a legend has the rows.
    """
    tones, groups = row_tones(every), list(dict.fromkeys(row.get("group", "") for row in rows))
    unequal, several = _sizes(every, "group"), len(groups) > 1
    apart = len(tones) + several
    for at, group in enumerate(groups):
        for index, (label, tone) in enumerate(tones.items(), start=at * apart):
            values = [row["accuracy"] for row in rows if (row["row"], row.get("group", "")) == (label, group)]
            if values:
                mean, std = mean_std(values)
                text = f"{mean:.1f}" if std is None else f"{mean:.1f} ± {std:.1f}"
                text += f", {_n([len(values)])}" if unequal else ""
                bounds = None if std is None else (mean - std, mean + std)
                _draw_bar(ax, Estimate(label, tone, mean, bounds, text), index, label if several else None)
    if several:
        ax.set_yticks([at * apart + (len(tones) - 1) / 2 for at in range(len(groups))], groups)
    else:
        ax.set_yticks(range(len(tones)), list(tones))
    ax.invert_yaxis()
    ax.set_xlim(0, (1.5 if unequal else 1.3) * max(row["accuracy"] for row in rows))  # room for the words
    dress(ax, FILE, ACCURACY, "", grid="x")


def _draw_bar(ax: Axes, estimate: Estimate, row: float, label: str | None) -> None:
    """Draw the mean of an `estimate` as a bar in its `row`, with its bounds as a line and its value in words."""
    ax.barh(row, estimate.mean, height=0.66, color=color(tone_name(estimate.tone)), alpha=0.85, label=label)
    low, high = estimate.bounds or (estimate.mean, estimate.mean)
    if high > low:
        error = [[estimate.mean - low], [high - estimate.mean]]
        ax.errorbar(estimate.mean, row, xerr=error, color=color("ink"), capsize=2.5, linewidth=FILE.grid)
    place: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
    at = max(high, estimate.mean), row
    ax.annotate(estimate.text, at, fontsize=FILE.ticks, color=color("ink"), **place)


def draw_costs(ax: Axes, rows: Rows, every: Rows, axis: str) -> None:
    """Draw on `ax` accuracy against the `bytes` that travelled, for `rows`, a panel of `every`.

    The shape of a marker is the setting `x`, its area `flops`. An axis of costs over two decades is logarithmic.
    """
    settings = list(dict.fromkeys(row["x"] for row in every))
    dearest = max(row["flops"] for row in every) or 1.0
    for label, tone in row_tones(every).items():
        tint = stroke(tone)["color"]
        for shape, setting in zip(SHAPES * len(settings), settings, strict=False):
            matching_rows = [row for row in rows if (row["row"], row["x"]) == (label, setting)]
            ax.scatter(
                [row["accuracy"] for row in matching_rows],
                [row["bytes"] / 1e6 for row in matching_rows],
                s=[24 + _FLOPS_AREA * row["flops"] / dearest for row in matching_rows],
                marker=shape,
                color=tint,
                alpha=0.6,
                linewidth=0,
            )
        # An empty line for the legend: markers of a scatter plot have the areas of their runs' FLOPs.
        ax.plot([], [], "o", color=tint, label=label)
    for shape, setting in zip(SHAPES * len(settings), settings, strict=False):
        ax.plot([], [], shape, color=color("muted"), markerfacecolor="none", label=setting)
    sent = [row["bytes"] for row in every]
    if min(sent) > 0 and max(sent) >= 100 * min(sent):
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(_PLAIN)
    ax.margins(0.12)
    dress(ax, FILE, f"{ACCURACY}\narea: FLOPs, largest {dearest:.2g}", "sent until the target (MB)")


def _sizes(rows: Rows, key: str) -> dict[str, list[int]]:
    """Over how many values the means of each row are, for each panel and `key`; empty where all are over as many."""
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
