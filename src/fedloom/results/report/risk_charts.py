"""ROC, precision and decision curves of runs with two classes, with the operating point that validation data chose."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from fedloom.results.group import Group
from fedloom.results.plots.drawing import PAGE, color, dress, inline, new_figure, place
from fedloom.results.report.class_results import recorded
from fedloom.results.report.markup import chart

_Curve = list[tuple[float, float, float]]
_XY = tuple[np.ndarray, np.ndarray]
_NAMES = (
    ("ROC curve", "false alarms among the others %", "found %", "chance"),
    ("Precision and recall", "found %", "right alarms %", "everyone is taken for it"),
    ("Decision curve", "threshold probability %", "net benefit %", "everyone is taken for it"),
)


def risk_curves(group: Group) -> tuple[str, list[np.ndarray]]:
    """Return the class of the threshold, or else the last, and its curve [3, T] of each run if all have two classes."""
    classes, decision = group.results[0].scenario.get("classes") or [""], group.results[0].numbers.get("decision") or {}
    label = classes.index(decision["label"]) if decision.get("label") in classes else len(classes) - 1
    curves = [recorded(run, "auroc", "curves", list[_Curve]) for run in group.results]
    usable = len(classes) == 2 and all(len(of) == 2 and of[label] and all(of[label][-1][1:]) for of in curves)
    return classes[label], [np.array(of[label]).T for of in curves] if usable else []


def net_benefits(curve: np.ndarray) -> list[list[float]]:
    """Return threshold, net benefit of the model and of treating all, in percent, at points of a curve [3, T]."""
    risks, benefits = _places(curve, curve[:, -1:])[2]
    share = 100 * curve[1, -1] / curve[1:, -1].sum()
    rows = np.stack([risks, benefits, share - (100 - share) * risks / (100 - risks)], 1)
    return list(rows[np.unique(np.abs(risks[:, None] - np.arange(5, 100, 10)).argmin(0))].tolist())


def risk_charts(name: str, group: Group, tone: str) -> list[Markup]:
    """Render the curves of the last tests of a `group` in a `tone`, if all its runs recorded two classes."""
    label, curves = risk_curves(group)
    if not curves:
        return []
    lines, dots = [], list[list[_XY]]()
    for curve, run in zip(curves, group.results, strict=True):
        metrics, decision = run.numbers["metrics"], run.numbers.get("decision") or {}
        _, positives, negatives = totals = curve[:, -1:]
        lines.append(_places(curve, totals))
        hits, cleared = metrics.get("decision_sensitivity"), metrics.get("decision_specificity")
        if run.numbers["select"] == "last" and hits is not None and cleared is not None:
            at = np.stack([[decision["threshold"]], hits * positives, (1 - cleared) * negatives])
            dots.append(_places(at, totals))
    share, risks = 100 * float(positives[0] / (positives + negatives)[0]), np.linspace(1, 99, 99)
    diagonal, benefit_of_all = np.array([0, 100]), share - (100 - share) * risks / (100 - risks)
    dotted = [(diagonal, diagonal), (diagonal, np.array([share, share])), (risks, benefit_of_all)]
    blocks = []
    for k, (title, x, y, words) in enumerate(_NAMES):
        caption = f"Class {label}. Dotted: {words}." + f" Lines: {len(lines)} seeds." * (len(lines) > 1)
        caption += " Dot: the threshold that validation data chose." if dots else ""
        low, high = 0.0, 101.0
        if title == "Decision curve":
            worst = min([float(of[k][1].min()) for of in dots], default=0.0)
            low, high = max(-share, min(-0.25 * share, 1.1 * worst)), 1.1 * share
            caption += f" A net benefit of {worst:.1f} % is below the chart." if worst < low else ""
        drawn = [of[k] for of in lines], [of[k] for of in dots], dotted[k], (low, high), (x, y), tone
        svg = inline(partial(_draw, *drawn), f"{name}-{k}", f"{title}, {group.row['label']}", caption)
        blocks.append(chart([svg], title, caption))
    return blocks


def _places(curve: np.ndarray, totals: np.ndarray) -> list[_XY]:
    """Coordinates of the rows of a curve [3, T] in the three charts, by the samples of the class and of others.
    The net benefit TP / n - FP / n t / (1 - t) at probability t is that of Vickers and Elkin 2006."""
    (log_odds, hits, alarms), (_, positives, negatives) = curve, totals
    sensitivity, precision = 100 * hits / positives, 100 * hits / np.where(hits + alarms, hits + alarms, np.nan)
    benefit = 100 * (hits - alarms * np.exp(np.clip(log_odds, -9, 9))) / (positives + negatives)
    return [
        (100 * alarms / negatives, sensitivity),
        (sensitivity, precision),
        (50 + 50 * np.tanh(log_odds / 2), benefit),
    ]


def _draw(
    lines: Sequence[_XY],
    dots: Sequence[_XY],
    dotted: _XY,
    bounds: tuple[float, float],
    words: tuple[str, str],
    tone: str,
) -> Figure:
    figure = new_figure(390, 330)
    axes = place(figure, 62, 8, 12, 46)
    axes.set_xlim(0, 100)
    axes.set_ylim(*bounds)
    axes.plot(*dotted, color=color("muted"), linewidth=1.2, linestyle=(0, (2, 2)))
    for line in lines:
        axes.plot(*line, color=color(tone), linewidth=1.8)
    for dot in dots:
        axes.plot(*dot, "o", color=color("ink"), clip_on=bool(dot[1].min() < bounds[0]), zorder=4)
    dress(axes, PAGE, *words, "both")
    return figure
