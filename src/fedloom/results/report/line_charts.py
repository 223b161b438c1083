"""Charts of rows: curves by round, differences from the baseline with their intervals, and average ranks.

A panel shows the rows of one setting; a method has one name and one colour in all charts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedloom.core.text import counted, percent
from fedloom.results.best_rows import AverageRanks
from fedloom.results.comparability import panel_titles, row_names
from fedloom.results.difference import Paired, all_paired
from fedloom.results.group import Group, ResultRow
from fedloom.results.plots.palette import dash_number, shortened_names, tone_name, tones_of
from fedloom.results.report.axes import color, inline, new_figure
from fedloom.results.report.curves import CHARACTER, TEXT, Line, Size, draw_lines, line, place, shows_seeds, terms
from fedloom.results.report.markup import chart, fold, grid, key, paragraph, shared_legend
from fedloom.results.verdict import BASELINE


@dataclass(frozen=True, slots=True)
class ChartRow:
    """A group of runs as charts show it.

    method: its name within its setting. panel: the words that tell apart settings and protocols, empty where all rows
    compare. tone: the number of the method's colour and dash, the same in every setting.
    """

    group: Group
    method: str
    panel: str
    tone: int

    @property
    def row(self) -> ResultRow:
        """The numbers of the group."""
        return self.group.row

    @property
    def color(self) -> str:
        """The custom property of the method's colour."""
        return tone_name(self.tone)


def chart_rows(groups: Sequence[Group]) -> list[ChartRow]:
    """Name all rows, and give each method its colour."""
    rows = [group.row for group in groups]
    names = row_names(rows)
    titles = panel_titles(rows, names)
    baseline = next((name.method for name, row in zip(names, rows, strict=True) if row["method"] == BASELINE), None)
    tones = tones_of([name.method for name in names], baseline)
    return [
        ChartRow(group, name.method, title, tones[name.method])
        for group, name, title in zip(groups, names, titles, strict=True)
    ]


def by_panel(rows: Sequence[ChartRow]) -> dict[str, list[ChartRow]]:
    """Group rows by the setting in which they compare, in the order of their first appearance."""
    panels: dict[str, list[ChartRow]] = {}
    for row in rows:
        panels.setdefault(row.panel, []).append(row)
    return panels


def legend(rows: Sequence[ChartRow]) -> list[tuple[str, str, int]]:
    """Return the colour, the name and the number of the dash of every method, each once."""
    return list(dict.fromkeys((row.color, row.method, dash_number(row.tone)) for row in rows))


_HERO, _FLAT, _HALF, _PHONE = Size(900, 380, 30), Size(900, 260, 30), Size(390, 260, 12), Size(360, 290, 9)
_PANEL = Size(390, 270, 0)
_LOSS = "test loss (nats)"
_MOST_LINES, _EMPHASISED = 14, 7  # of more lines, the best and the baseline alone have their colours
_MOST_TERMS = 24  # charts of loss terms; they fold beyond _OPEN
_OPEN = 4


def learning_curves(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render test accuracy by round, a panel for each setting."""
    lines = _by_panel(rows, "accuracy")
    every = [one for panel in lines.values() for one in panel]
    if not every:
        return []
    caption = "Test accuracy by round."
    if any(one.std for one in every):
        caption += " Mean over seeds; band: ± sample standard deviation"
        caption += "; thin lines: single seeds." if all(map(shows_seeds, lines.values())) else "."
    if any(one.faint for one in every):
        caption += f" Coloured: FedAvg and the {_EMPHASISED} highest at the end; grey: the other methods."
    return _charts(rows, lines, "accuracy", ("Learning curves", caption), "test accuracy", share=True)


def losses(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render the test loss, and the loss terms of each method that logs several."""
    parts: list[Markup] = []
    several = [(row, lines) for row in rows if not row.group.is_further and len(lines := _terms(row)) > 1]
    for k, (row, lines) in enumerate(several[:_MOST_TERMS]):
        title = f"Loss terms of {row.row['label']}"
        label = f"{title} in training by round: {_ends(lines)}."
        draw = partial(draw_lines, lines, _HALF, "loss term", share=False, marked=True)
        svg = inline(draw, f"terms-{k}", title, label)
        parts.append(chart([svg], title, "As logged in training, mean over seeds."))
    lines_by_panel = _by_panel(rows, "loss")
    blocks: list[Markup] = []
    if any(lines_by_panel.values()):
        caption = "Cross-entropy in nats, mean over seeds."
        blocks = _charts(rows, lines_by_panel, "loss", ("Test loss", caption), _LOSS, share=False)
    if len(parts) > _OPEN:
        note = f", the first {_MOST_TERMS} of {len(several)}" if len(several) > _MOST_TERMS else ""
        return [*blocks, fold(f"Loss terms of {counted(len(parts), 'row')}{note}", [grid(parts)])]
    return [*blocks, grid(parts)] if parts else blocks


def _charts(
    rows: Sequence[ChartRow],
    lines_by_panel: dict[str, list[Line]],
    name: str,
    words: tuple[str, str],
    quantity: str,
    *,
    share: bool,
) -> list[Markup]:
    """Render one large chart, or small multiples of one scale under one legend. words: title and caption."""
    title, caption = words
    panels = [(panel, lines) for panel, lines in lines_by_panel.items() if lines]
    heading = "" if share else title
    if len(panels) == 1:
        ((panel, lines),) = panels
        label = f"{title}, {quantity} by round: {_ends(lines, share)}."
        size = _HERO if share else _FLAT
        svgs = [
            inline(partial(draw_lines, lines, size, quantity, share=share), f"{name}-{css}", title, label, css)
            for css, size in (("wide", size), ("narrow", _PHONE))
        ]
        return [chart(svgs, heading, caption, _key(rows, lines), wide=True)]
    limits = _limits([one for _, lines in panels for one in lines]) if share else None
    figures = []
    for k, (panel, lines) in enumerate(panels):
        draw = partial(draw_lines, lines, _PANEL, quantity, share=share, limits=limits)
        label = f"{title} of {panel}, {quantity} by round: {_ends(lines, share)}."
        figures.append(chart([inline(draw, f"{name}-{k}", f"{title}, {panel}", label)], panel))
    shown = {line.tone for _, lines in panels for line in lines if not line.faint}
    return [shared_legend(heading, caption, legend([row for row in rows if row.tone in shown])), grid(figures)]


def _key(rows: Sequence[ChartRow], lines: Sequence[Line]) -> Markup | None:
    """A legend where dashes tell lines apart; otherwise for narrow screens, where a name is too long for its line."""
    shown = {one.tone for one in lines if not one.faint}
    entries = legend([row for row in rows if row.tone in shown])
    if any(dash for *_, dash in entries):
        return key(entries)
    return None if all(len(one.label) <= _PHONE.characters for one in lines) else key(entries, "narrow")


def _by_panel(rows: Sequence[ChartRow], name: str) -> dict[str, list[Line]]:
    return {panel: _emphasised(_lines(members, name), members) for panel, members in by_panel(rows).items()}


def _lines(rows: Sequence[ChartRow], name: str) -> list[Line]:
    maybe_lines = [line(row.method, row.tone, row.group.results, name, "test") for row in rows]
    return [curve for curve in maybe_lines if curve is not None]


def _emphasised(lines: list[Line], rows: Sequence[ChartRow]) -> list[Line]:
    """Make lines faint if there are many, but the baseline's and those of the highest accuracies."""
    if len(lines) <= _MOST_LINES:
        return lines
    best = sorted((row for row in rows if row.tone), key=lambda row: -row.row["accuracy"])[:_EMPHASISED]
    strong = {0, *(row.tone for row in best)}
    return sorted((replace(one, faint=one.tone not in strong) for one in lines), key=lambda one: not one.faint)


def _limits(lines: Sequence[Line]) -> tuple[float, float]:
    """The range of all means with their deviations, within [0, 1]."""
    bounds = [
        mean + sign * (std or 0.0)
        for one in lines
        for mean, std in zip(one.mean, one.std or [0.0] * len(one.mean), strict=True)
        for sign in (-1, 1)
    ]
    return max(min(bounds) - 0.02, -0.02), min(max(bounds) + 0.02, 1.02)


def _terms(row: ChartRow) -> list[Line]:
    results = row.group.results
    maybe_lines = [line(name, row.tone, results, name, "train") for name in terms(results)]
    return [curve for curve in maybe_lines if curve is not None]


def _ends(lines: Sequence[Line], share: bool = False) -> str:
    return ", ".join(
        f"{one.label} ends at {f'{percent(one.mean[-1])} %' if share else f'{one.mean[-1]:.3g}'}" for one in lines
    )


_ROW_HEIGHT, _WIDE, _HALF_WIDTH, _NARROW = 46.0, 900.0, 390.0, 360.0
_NAME, _DOT, _ZERO = 14.0, 34.0, (25.0, 43.0)  # in a row: where names stand, its dot, and zero's line between names
_RANK_ROW = 22.0


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """The difference of a row from its baseline, with the names of both methods and the row's colour."""

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
        sizes = (("wide", _WIDE), ("narrow", _NARROW)) if len(panels) == 1 else (("", _HALF_WIDTH),)
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
    height = _ROW_HEIGHT * len(rows) + 44
    figure = new_figure(width, height)
    axes = place(figure, 8, 0, 22, 44)
    axes.set_xlabel(f"points from {_reference(rows)}", color=color("muted"), fontsize=TEXT, labelpad=5)
    axes.set_ylim(_ROW_HEIGHT * len(rows), 0)
    axes.set_yticks([])
    margin = 0.04 * (limits[1] - limits[0] or 1.0)
    left, right = limits[0] - margin, limits[1] + margin
    axes.set_xlim(left, right)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=max(4, int(width // 90))))
    summaries = [f"{100 * row.pair.outcome.mean:+.1f} · {row.pair.outcome.word}" for row in rows]
    letters = (width - 30) / CHARACTER - 1 - max(map(len, summaries))
    names = shortened_names([row.method for row in rows], letters)
    for index, (row, name, summary) in enumerate(zip(rows, names, summaries, strict=True)):
        top, outcome = index * _ROW_HEIGHT, row.pair.outcome
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
