"""Charts of a comparison: differences from the baseline with their intervals, and average ranks of many methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.results.paired import Paired, all_paired
from fedloom.results.plots.names import shortened_names
from fedloom.results.plots.palette import tone_name
from fedloom.results.ranks import AverageRanks
from fedloom.results.report.chart_rows import ChartRow
from fedloom.results.report.curves import CHARACTER, TEXT, place
from fedloom.results.report.markup import chart, grid, paragraph
from fedloom.results.report.svg import color, inline, new_figure
from fedloom.results.verdict import BASELINE

_ROW, _WIDE, _HALF, _NARROW = 46.0, 900.0, 390.0, 360.0
_NAME, _DOT, _ZERO = 14.0, 34.0, (25.0, 43.0)  # in a row: where names stand, its dot, and zero's line between names
_RANK_ROW = 22.0


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """The difference of a row from its baseline, with the names of both methods and the colour of its own."""

    pair: Paired
    method: str
    baseline: str
    tone: int


def difference_rows(rows: Sequence[ChartRow]) -> dict[str, list[DifferenceRow]]:
    """Compare every method with the baseline of its setting, by setting; pairs without an interval are left out."""
    row_by_label = {row.row["label"]: row for row in rows}
    panels: dict[str, list[DifferenceRow]] = {}
    for pair in all_paired([row.row for row in rows], BASELINE):
        row, baseline = row_by_label[pair.label], row_by_label[pair.reference].method
        if pair.outcome.low is not None:
            panels.setdefault(row.panel, []).append(DifferenceRow(pair, row.method, baseline, row.tone))
    return panels


def differences(panels: Mapping[str, Sequence[DifferenceRow]]) -> list[Markup]:
    """Render differences from the baseline in points with 95 % intervals, a panel for each setting."""
    caption = (
        "Dot: mean difference over equal seeds; line: its 95 % t interval, not corrected. The word is that of the "
        "paired t test after Holm's correction. Hollow dots have fewer than three seeds."
    )
    bounds = [bound for rows in panels.values() for row in rows for bound in _bounds(row)]
    limits = min(0.0, *bounds), max(0.0, *bounds)
    figures = []
    for k, (panel, rows) in enumerate(panels.items()):
        words = "; ".join(f"{row.pair.label} {row.pair.figures()}: {row.pair.outcome.word}" for row in rows)
        label = f"Differences in accuracy from {_reference(rows)}: {words}."
        title = f"Differences from the baseline{f', {panel}' if panel else ''}"
        sizes = (("wide", _WIDE), ("narrow", _NARROW)) if len(panels) == 1 else (("", _HALF),)
        svgs = [
            inline(
                partial(_draw_differences, rows, width, limits),
                f"differences-{k}{css}",
                title,
                label,
                css,
            )
            for css, width in sizes
        ]
        figures.append(chart(svgs, panel, caption if len(panels) == 1 else ""))
    if len(figures) < 2:
        return figures
    return [paragraph(caption, "note"), grid(figures)]


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


def _reference(rows: Sequence[DifferenceRow]) -> str:
    """Name the baseline; rows may have several, such as two presets."""
    references = {row.baseline for row in rows}
    return references.pop() if len(references) == 1 else "the setting's baseline"


def _bounds(row: DifferenceRow) -> tuple[float, float]:
    """The interval in points."""
    outcome = row.pair.outcome
    return 100 * (outcome.low or 0.0), 100 * (outcome.high or 0.0)


def _draw_differences(rows: Sequence[DifferenceRow], width: float, limits: tuple[float, float]) -> Figure:
    height = _ROW * len(rows) + 44
    figure = new_figure(width, height)
    axes = place(figure, 8, 0, 22, 44)
    axes.set_xlabel(f"points from {_reference(rows)}", color=color("muted"), fontsize=TEXT, labelpad=5)
    axes.set_ylim(_ROW * len(rows), 0)
    axes.set_yticks([])
    margin = 0.04 * (limits[1] - limits[0] or 1.0)
    left, right = limits[0] - margin, limits[1] + margin
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=max(4, int(width // 90))))
    summaries = [f"{100 * row.pair.outcome.mean:+.1f} · {row.pair.outcome.word}" for row in rows]
    letters = (width - 30) / CHARACTER - 1 - max(map(len, summaries))
    names = shortened_names([row.method for row in rows], letters)
    for index, (row, name, summary) in enumerate(zip(rows, names, summaries, strict=True)):
        top, outcome = index * _ROW, row.pair.outcome
        tint = color(tone_name(row.tone))
        axes.plot([0, 0], [top + _ZERO[0], top + _ZERO[1]], color=color("muted"), linewidth=1, zorder=0)
        axes.plot(_bounds(row), [top + _DOT] * 2, color=tint, linewidth=2.5)
        face = "none" if outcome.word == "too few seeds" else tint
        axes.plot(100 * outcome.mean, top + _DOT, "o", color=tint, markerfacecolor=face, markersize=8)
        axes.text(left, top + _NAME, name, color=color("ink"), fontsize=TEXT, va="baseline")
        axes.text(right, top + _NAME, summary, color=color("muted"), fontsize=TEXT, va="baseline", ha="right")
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
    names = shortened_names(list(average.ranks), _NARROW / CHARACTER / 2 - len(" 10.0"))
    for row, (name, rank) in enumerate(zip(names, average.ranks.values(), strict=True)):
        y = 12 + _RANK_ROW * row
        axes.plot([rank, rank], [0, y], color=color("line"), linewidth=1, zorder=0)
        axes.plot(rank, y, "o", color=color("ink"), markersize=5.5)
        beside = 0.02 * len(methods) if rank <= middle else -0.02 * len(methods)
        side = "left" if rank <= middle else "right"
        axes.text(rank + beside, y, f"{name} {rank:.1f}", color=color("ink"), fontsize=TEXT, va="center", ha=side)
    for k, (low, high) in enumerate(bars):
        y = _RANK_ROW * len(methods) + 12 * k + 8
        axes.plot([low, high], [y, y], color=color("muted"), linewidth=4, solid_capstyle="butt")
    return figure
