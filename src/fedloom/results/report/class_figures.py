"""Drawings of predictions by class and by confidence: confusion matrix, recall of each class, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter

from fedloom.results.plots.names import shortened_names
from fedloom.results.report.class_results import CalibrationCurve
from fedloom.results.report.curves import CHARACTER, TEXT, place
from fedloom.results.report.svg import color, new_figure

HALF = 390.0  # CSS pixels at natural size
WITH_COUNTS = 12  # classes up to which the cells of a matrix have their counts
_CORRECT, _WRONG = (0.20, 0.49, 0.75), (0.85, 0.42, 0.05)  # mixed by opacity, for light and dark themes alike
_DARKEST = 0.7  # opacity, so that the text in a cell keeps its contrast
_LABEL = 14  # characters of a class's name
_TICK_STEP = 14.0  # CSS pixels between names of classes
_PERCENT = FuncFormatter(lambda value, _: f"{value:g} %")


def draw_confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str], width: float) -> Figure:
    """Test samples by true class (rows) and predicted class (columns); opacity grows with the share of the row.

    Args:
        confusion: test samples by true and predicted class [C, C].
        classes: names of the C classes.
        width: width of the figure in CSS pixels.
    """
    names = shortened_names(classes, _LABEL)
    room = 40 + CHARACTER * max(map(len, names))
    cell = (width - room - 4) / len(classes)
    height = min(cell, 44.0) * len(classes)
    figure = new_figure(width, height + room + 4)
    axes = place(figure, room, room, 4, 4)
    counts = np.asarray(confusion, dtype=np.float64)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    pixels = np.zeros((*counts.shape, 4))
    pixels[..., :3] = np.where(np.eye(len(counts), dtype=bool)[..., None], _CORRECT, _WRONG)
    pixels[..., 3] = _DARKEST * np.sqrt(shares)
    axes.imshow(pixels, aspect="auto", interpolation="none")
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    step = ceil(_TICK_STEP / min(cell, height / len(classes)))
    shown = range(0, len(classes), step)
    axes.set_xticks(shown, names[::step], rotation=90, ha="center")
    axes.set_yticks(shown, names[::step])
    axes.set_xlabel("predicted class", color=color("muted"), fontsize=TEXT, labelpad=4)
    axes.set_ylabel("true class", color=color("muted"), fontsize=TEXT, labelpad=4)
    for k in range(len(classes)) if len(classes) <= WITH_COUNTS else ():
        for j, samples in enumerate(confusion[k]):
            size = min(TEXT, 1.7 * cell / max(len(_short(samples)), 1))
            axes.text(j, k, _short(samples), color=color("ink"), fontsize=size, ha="center", va="center_baseline")
    return figure


def draw_recall(
    rows: Sequence[tuple[str, float | None, str | None]], accuracy: float, majority: float | None, tone: str
) -> Figure:
    """Recall of each class as a bar, with its test samples; lines at the accuracy and at the majority baseline.

    Args:
        rows: name, recall in [0, 1] and test samples of a class, as text.
        accuracy: accuracy of the run in [0, 1], drawn as a line.
        majority: accuracy of the majority baseline in [0, 1]; None draws no line.
        tone: the custom property of the bars' colour.
    """
    pitch = 24.0 if len(rows) <= 20 else 17.0
    names = shortened_names([name for name, *_ in rows], 16)
    left = 10 + CHARACTER * max(map(len, names))
    shares = ["no sample" if recall is None else f"{100 * recall:.0f} %" for _, recall, _ in rows]
    texts = [
        text if recall is None or support is None else f"{text} of {support}"
        for text, (_, recall, support) in zip(shares, rows, strict=True)
    ]
    right = max(110.0, min(CHARACTER * max(map(len, texts)), HALF - left - 40))
    figure = new_figure(HALF, pitch * len(rows) + 46)
    axes = place(figure, left, 4, right, 42)
    axes.set_xlim(0, 100)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), names)
    _percent_ticks(axes)
    axes.set_xlabel("recall", color=color("muted"), fontsize=TEXT, labelpad=5)
    for k, (text, (_, recall, _)) in enumerate(zip(texts, rows, strict=True)):
        axes.add_patch(Rectangle((0, k - 0.3), 100 * (recall or 0.0), 0.6, color=color(tone), linewidth=0))
        ink = color("warn" if recall == 0 else "muted")
        axes.text(103, k, text, color=ink, fontsize=TEXT, va="center_baseline", clip_on=False)
    axes.axvline(100 * accuracy, color=color("ink"), linewidth=1.4)
    if majority is not None:
        axes.axvline(100 * majority, color=color("warn"), linewidth=1.6, linestyle=(0, (4, 2.5)))
    return figure


def draw_calibration(curve: CalibrationCurve, majority: float | None, tone: str) -> Figure:
    """Share of correct predictions against confidence with the diagonal of perfect calibration, and samples by bin.

    Args:
        curve: samples, mean confidence and share of correct predictions by bin.
        majority: accuracy of the majority baseline in [0, 1], drawn as a line; None draws none.
        tone: the custom property of the curve's colour.
    """
    figure = new_figure(HALF, 390)
    axes = place(figure, 62, 8, 12, 130)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.plot([0, 100], [0, 100], color=color("muted"), linewidth=1.2, linestyle=(0, (2, 2)))
    used = [one for one in curve.bins if one is not None]
    xs, ys = [100 * confidence for _, confidence, _ in used], [100 * correct for *_, correct in used]
    axes.plot(xs, ys, "-o", color=color(tone), linewidth=1.8, markersize=6, clip_on=False, zorder=3)
    if majority is not None:
        axes.axhline(100 * majority, color=color("warn"), linewidth=1.6, linestyle=(0, (4, 2.5)))
    _percent_ticks(axes, both=True)
    axes.tick_params(labelbottom=False)
    axes.set_ylabel("correct", color=color("muted"), fontsize=TEXT)
    below = place(figure, 62, 272, 12, 42)
    below.set_xlim(0, 100)
    largest = max(n for n, *_ in used)
    below.set_ylim(0, 1.35 * largest)
    step = 100 / len(curve.bins)
    for k, one in enumerate(curve.bins):
        if one is not None:
            below.add_patch(Rectangle((k * step + 0.6, 0), step - 1.2, one[0], color=color("p1"), linewidth=0))
            below.text((k + 0.5) * step, one[0], _short(one[0]), color=color("ink"), fontsize=10, ha="center")
    below.set_yticks([])
    _percent_ticks(below)
    below.grid(visible=False)
    below.set_ylabel("samples", color=color("muted"), fontsize=TEXT, labelpad=36)
    below.set_xlabel("confidence", color=color("muted"), fontsize=TEXT, labelpad=5)
    return figure


def draw_recalls(rows: Sequence[tuple[str, Sequence[float | None]]], classes: Sequence[str], width: float) -> Figure:
    """Recall of every class (columns) by every row as a heat map; opacity grows with recall.

    Args:
        rows: label of each row, and its recall in [0, 1] by class; None where a class has no test samples.
        classes: names of the C classes.
        width: width of the figure in CSS pixels.
    """
    labels, names = shortened_names([label for label, _ in rows], width / 30), shortened_names(classes, _LABEL)
    left = 10 + CHARACTER * max(map(len, labels))
    top = 26 + CHARACTER * max(map(len, names))
    pitch = 22.0
    figure = new_figure(width, top + pitch * len(rows) + 4)
    axes = place(figure, left, top, 4, 4)
    pixels = np.zeros((len(rows), len(classes), 4))
    for k, (_, recalls) in enumerate(rows):
        for j, recall in enumerate(recalls):
            pixels[k, j] = (*(_WRONG if recall == 0 else _CORRECT), _DARKEST * (0.6 if recall == 0 else recall or 0.0))
    axes.imshow(pixels, aspect="auto", interpolation="none")
    cell = (width - left - 4) / len(classes)
    step = ceil(_TICK_STEP / cell)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks(range(0, len(classes), step), names[::step], rotation=90, ha="center")
    axes.set_yticks(range(len(rows)), labels)
    axes.set_xlabel("class", color=color("muted"), fontsize=TEXT, labelpad=4)
    for k, (_, recalls) in enumerate(rows if cell >= 20 else ()):
        for j, recall in enumerate(recalls):
            words = "–" if recall is None else f"{100 * recall:.0f}"
            axes.text(j, k, words, color=color("ink"), fontsize=10.5, ha="center", va="center_baseline")
    return figure


def _percent_ticks(axes: Axes, both: bool = False) -> None:
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.xaxis,):
        axis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
        axis.set_major_formatter(_PERCENT)
    axes.grid(axis="both" if both else "x", color=color("line"), linewidth=1)
    axes.set_axisbelow(True)


def _short(samples: float) -> str:
    """A count in at most four characters: 950, 1.2k, 15k."""
    if samples < 1000:
        return f"{samples:.0f}"
    return f"{samples / 1000:.1f}k" if samples < 9950 else f"{samples / 1000:.0f}k"
