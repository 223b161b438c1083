"""Charts by round: test accuracy, test loss, loss terms of training; a panel for each setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from markupsafe import Markup

from fedloom.core.text import counted, percent
from fedloom.results.report.chart_rows import ChartRow, by_panel, legend
from fedloom.results.report.curves import Size, draw_lines, shows_seeds
from fedloom.results.report.markup import chart, fold, grid, key, shared_legend
from fedloom.results.report.measures import Line, line, terms
from fedloom.results.report.svg import inline

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
