"""Charts of a comparison: differences from the baseline with their intervals, and average ranks of many methods."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from markupsafe import Markup
from matplotlib.figure import Figure

from fedloom.plots.palette import tone_name
from fedloom.report.curves import CHARACTER, TEXT, elided, place
from fedloom.report.markup import chart
from fedloom.report.svg import color, inline, new_figure
from fedloom.results.paired import Paired
from fedloom.results.ranks import AverageRanks

_ROW, _WIDE, _NARROW = 46.0, 900.0, 360.0
_RANK_ROW = 22.0


def differences(
    pairs: Sequence[Paired], tones: Sequence[int], name: str = "differences", title: str = ""
) -> Markup | None:
    """Differences from the baseline in points with 95 % intervals, a row each; None where no pair has an interval.

    Args:
        pairs: the comparisons with the baseline.
        tones: the colour number of each pair's method, which it has in all settings.
        name: prefix of ids.
        title: heading of the chart.
    """
    rows = [(pair, tone) for pair, tone in zip(pairs, tones, strict=True) if pair.outcome.low is not None]
    if not rows:
        return None
    words = "; ".join(f"{pair.label} {pair.figures()}: {pair.outcome.word}" for pair, _ in rows)
    label = f"Differences in accuracy from {_reference(rows)}: {words}."
    svgs = [
        inline(partial(_draw_differences, rows, width), f"{name}-{css}", "Differences from the baseline", label, css)
        for css, width in (("wide", _WIDE), ("narrow", _NARROW))
    ]
    caption = (
        "Dot: mean difference over equal seeds; line: its 95 % t interval, not corrected. The word is that of the "
        "paired t test after Holm's correction. Hollow dots have fewer than three seeds."
    )
    return chart(svgs, title, caption)


def ranks(averages: Sequence[AverageRanks]) -> list[Markup]:
    """Average ranks over settings, a diagram for each protocol."""
    charts = []
    for k, average in enumerate(averages):
        words = ", ".join(f"{method} {rank:.1f}" for method, rank in average.ranks.items())
        label = f"Average rank over {average.settings} settings, {average.protocol}: {words}."
        svg = inline(partial(_draw_ranks, average), f"ranks-{k}", "Average ranks", label)
        caption = f"Mean rank over {average.settings} settings, {average.protocol}; 1 is best."
        if average.critical is None:
            caption += " Fewer than five settings: nothing is tested."
        else:
            caption += f" Bars join methods within the critical difference of {average.critical:.2f} (Nemenyi)."
        charts.append(chart([svg], "Average ranks", caption))
    return charts


def _reference(rows: Sequence[tuple[Paired, int]]) -> str:
    """Name the baseline; each setting has its own."""
    references = {pair.reference for pair, _ in rows}
    return references.pop() if len(references) == 1 else "the setting's baseline"


def _draw_differences(rows: Sequence[tuple[Paired, int]], width: float) -> Figure:
    height = _ROW * len(rows) + 44
    figure = new_figure(width, height)
    axes = place(figure, 8, 0, 22, 44)
    axes.set_xlabel(f"points from {_reference(rows)}", color=color("muted"), fontsize=TEXT, labelpad=5)
    axes.set_ylim(_ROW * len(rows), 0)
    axes.set_yticks([])
    bounds = [100 * bound for pair, _ in rows for bound in (pair.outcome.low or 0.0, pair.outcome.high or 0.0)]
    low, high = min(0.0, *bounds), max(0.0, *bounds)
    margin = 0.04 * (high - low or 1.0)
    left, right = low - margin, high + margin
    axes.set_xlim(left, right)
    axes.axvline(0, color=color("muted"), linewidth=1, zorder=0)
    for row, (pair, tone) in enumerate(rows):
        top, outcome = row * _ROW, pair.outcome
        tint = color(tone_name(tone))
        axes.plot([100 * (outcome.low or 0.0), 100 * (outcome.high or 0.0)], [top + 32] * 2, color=tint, linewidth=2.5)
        face = "none" if outcome.word == "too few seeds" else tint
        axes.plot(100 * outcome.mean, top + 32, "o", color=tint, markerfacecolor=face, markersize=8)
        summary = f"{100 * outcome.mean:+.1f} · {outcome.word}"
        name = elided(pair.label, (width - 30) / CHARACTER - len(summary) - 1)
        axes.text(left, top + 18, name, color=color("ink"), fontsize=TEXT, va="baseline")
        axes.text(right, top + 18, summary, color=color("muted"), fontsize=TEXT, va="baseline", ha="right")
    return figure


def _draw_ranks(average: AverageRanks) -> Figure:
    methods, bars = list(average.ranks.items()), average.cliques
    height = _RANK_ROW * len(methods) + 12 * len(bars) + 54
    figure = new_figure(_NARROW, height)
    axes = place(figure, 8, 0, 22, 34)
    axes.set_xlim(0.8, len(methods) + 0.2)
    axes.set_ylim(height - 54, 0)
    axes.set_yticks([])
    axes.set_xlabel("mean rank", color=color("muted"), fontsize=TEXT)
    middle = (len(methods) + 1) / 2
    for row, (method, rank) in enumerate(methods):
        y = 12 + _RANK_ROW * row
        axes.plot([rank, rank], [0, y], color=color("line"), linewidth=1, zorder=0)
        axes.plot(rank, y, "o", color=color("ink"), markersize=5.5)
        name = elided(f"{method} {rank:.1f}", _NARROW / CHARACTER / 2)
        beside = 0.02 * len(methods) if rank <= middle else -0.02 * len(methods)
        side = "left" if rank <= middle else "right"
        axes.text(rank + beside, y, name, color=color("ink"), fontsize=TEXT, va="center", ha=side)
    for k, (low, high) in enumerate(bars):
        y = _RANK_ROW * len(methods) + 12 * k + 8
        axes.plot([low, high], [y, y], color=color("muted"), linewidth=4, solid_capstyle="butt")
    return figure
