"""Charts of rows: curves by round and differences from the baseline with their intervals.
A panel shows the rows of one setting; a method has one name and one colour in all charts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from markupsafe import Markup
from matplotlib.figure import Figure

from fedloom.core.text import percent
from fedloom.results.difference import Paired, all_paired
from fedloom.results.plot_values import ChartRow
from fedloom.results.plots.drawing import inline
from fedloom.results.plots.palette import Curve, Estimate, dash_number, tone_name
from fedloom.results.report.curves import Size, draw_differences, draw_lines, shows_seeds
from fedloom.results.report.markup import chart, grid, key, paragraph, shared_legend
from fedloom.results.verdict import BASELINE

_HERO, _PHONE, _PANEL = Size(900, 380, 30), Size(360, 290, 9), Size(390, 270, 0)
_MOST_LINES, _EMPHASISED = 14, 7  # of more lines, the best and the baseline alone have their colours


def by_panel(rows: Sequence[ChartRow]) -> dict[str, list[ChartRow]]:
    """Group rows by the setting in which they compare, in the order of their first appearance."""
    panels: dict[str, list[ChartRow]] = {}
    for row in rows:
        panels.setdefault(row.panel, []).append(row)
    return panels


def wide_and_narrow(
    draw: Callable[[float], Figure], name: str, title: str, description: str, wide: float
) -> list[Markup]:
    """Draw a chart with its title and description at the width `wide` and at a phone's; `name`: the prefix of ids."""
    sizes = (("wide", wide), ("narrow", 360.0))
    return [inline(partial(draw, width), f"{name}-{css}", title, description, css) for css, width in sizes]


def panels_of(
    draw: Callable[[str, float], Figure], panels: Mapping[str, tuple[str, str]], name: str, caption: str
) -> list[Markup]:
    """Render a chart for each of the panels (title and description) below one caption; a single one is wide. `draw`
    makes a panel at a width in CSS pixels, and `name` is the prefix of ids."""
    if len(panels) == 1:
        ((panel, (title, description)),) = panels.items()
        return [chart(wide_and_narrow(partial(draw, panel), f"{name}-0", title, description, 900.0), panel, caption)]
    figures = [
        chart([inline(partial(draw, panel, 390.0), f"{name}-{k}", title, description)], panel)
        for k, (panel, (title, description)) in enumerate(panels.items())
    ]
    return [paragraph(caption, "note"), grid(figures)] if figures else []


def learning_curves(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render test accuracy by round, a panel for each setting."""
    by_setting = _by_panel(rows)
    every = [curve for curves in by_setting.values() for curve in curves]
    if not every:
        return []
    caption = "Test accuracy by round."
    if any(curve.std for curve in every):
        caption += " Mean over seeds; band: ± sample standard deviation"
        caption += "; thin lines: single seeds." if all(map(shows_seeds, by_setting.values())) else "."
    if any(curve.faint for curve in every):
        caption += f" Coloured: FedAvg and the {_EMPHASISED} highest at the end; grey: the other methods."
    panels = [(panel, curves) for panel, curves in by_setting.items() if curves]
    title, quantity = "Learning curves", "test accuracy"
    if len(panels) == 1:
        ((panel, curves),) = panels
        label = f"{title}, {quantity} by round: {_ends(curves)}."
        svgs = [
            inline(partial(draw_lines, curves, size, quantity), f"accuracy-{css}", title, label, css)
            for css, size in (("wide", _HERO), ("narrow", _PHONE))
        ]
        return [chart(svgs, "", caption, _key(rows, curves), wide=True)]
    limits = _limits(every)
    figures = []
    for k, (panel, curves) in enumerate(panels):
        draw = partial(draw_lines, curves, _PANEL, quantity, limits=limits)
        label = f"{title} of {panel}, {quantity} by round: {_ends(curves)}."
        figures.append(chart([inline(draw, f"accuracy-{k}", f"{title}, {panel}", label)], panel))
    return [shared_legend("", caption, _legend(rows, every)), grid(figures)]


def _legend(rows: Sequence[ChartRow], curves: Sequence[Curve]) -> list[tuple[str, str, int]]:
    """Return the colour, the name and the number of the dash of every method that is drawn, each once."""
    shown = {curve.tone for curve in curves if not curve.faint}
    entries = ((tone_name(row.tone), row.method, dash_number(row.tone)) for row in rows if row.tone in shown)
    return list(dict.fromkeys(entries))


def _key(rows: Sequence[ChartRow], curves: Sequence[Curve]) -> Markup | None:
    """A legend where dashes tell lines apart; otherwise for narrow screens, where a name is too long for its line."""
    entries = _legend(rows, curves)
    if any(dash for *_, dash in entries):
        return key(entries)
    return None if all(len(curve.method) <= _PHONE.characters for curve in curves) else key(entries, "narrow")


def _by_panel(rows: Sequence[ChartRow]) -> dict[str, list[Curve]]:
    """The curves of each setting. Of many, all but the baseline's and those of the highest accuracies are faint."""
    panels = {}
    for panel, members in by_panel(rows).items():
        curves = [curve for row in members if (curve := row.curve("accuracy")) is not None]
        if len(curves) > _MOST_LINES:
            best = sorted((row for row in members if row.tone), key=lambda row: -row.row["accuracy"])[:_EMPHASISED]
            strong = {0, *(row.tone for row in best)}
            curves = [replace(curve, faint=curve.tone not in strong) for curve in curves]
            # Faint ones first, because later lines are drawn over earlier ones.
            curves.sort(key=lambda curve: not curve.faint)
        panels[panel] = curves
    return panels


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    bounds = [
        mean + sign * std
        for curve in curves
        for mean, std in zip(curve.mean, curve.std or [0.0] * len(curve.mean), strict=True)
        for sign in (-1, 1)
    ]
    return max(min(bounds) - 0.02, -0.02), min(max(bounds) + 0.02, 1.02)


def _ends(curves: Sequence[Curve]) -> str:
    return ", ".join(f"{curve.method} ends at {percent(curve.mean[-1])} %" for curve in curves)


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    """The difference of a row from its baseline, with the name of that one's method."""

    pair: Paired
    drawn: Estimate
    baseline: str


def difference_rows(rows: Sequence[ChartRow]) -> dict[str, list[DifferenceRow]]:
    """Compare every method with the baseline of its setting, by setting; pairs without an interval are left out."""
    row_by_label = {row.row["label"]: row for row in rows}
    panels: dict[str, list[DifferenceRow]] = {}
    for pair in all_paired([row.row for row in rows], BASELINE):
        row, baseline, outcome = row_by_label[pair.label], row_by_label[pair.reference].method, pair.outcome
        if outcome.low is not None and outcome.high is not None:
            mean, bounds = 100 * outcome.mean, (100 * outcome.low, 100 * outcome.high)
            words, hollow = f"{mean:+.1f} · {outcome.word}", outcome.word == "too few seeds"
            drawn = Estimate(row.method, row.tone, mean, bounds, words, hollow)
            panels.setdefault(row.panel, []).append(DifferenceRow(pair, drawn, baseline))
    return panels


def differences(panels: Mapping[str, Sequence[DifferenceRow]]) -> list[Markup]:
    """Render differences from the baseline in points with 95 % intervals, a panel for each setting."""
    caption = (
        "Dot: mean difference over equal seeds; line: its 95 % t interval, not corrected. The word is that of the "
        "paired t test after Holm's correction. Hollow dots have fewer than three seeds."
    )
    bounds = [bound for rows in panels.values() for row in rows for bound in row.drawn.ends]
    limits = min(0.0, *bounds), max(0.0, *bounds)
    described = {}
    for panel, rows in panels.items():
        words = "; ".join(f"{row.pair.label} {row.pair.figures()}: {row.pair.outcome.word}" for row in rows)
        title = f"Differences from the baseline{f', {panel}' if panel else ''}"
        described[panel] = title, f"Differences in accuracy from {_reference(rows)}: {words}."

    def draw(panel: str, width: float) -> Figure:
        quantity = f"points from {_reference(panels[panel])}"
        return draw_differences([row.drawn for row in panels[panel]], width, limits, quantity)

    return panels_of(draw, described, "differences", caption)


def _reference(rows: Sequence[DifferenceRow]) -> str:
    """Name the baseline; rows may have several, such as two presets."""
    references = {row.baseline for row in rows}
    return references.pop() if len(references) == 1 else "the setting's baseline"
