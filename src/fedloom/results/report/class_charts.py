"""Charts of classes and confidences: confusion matrix, recall of each class, calibration."""

from collections.abc import Sequence
from functools import partial
from math import ceil
from statistics import fmean, mean

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter

from fedloom.core.text import lists_by_key, percent
from fedloom.results.data_table import Cell, DataTable, or_dash
from fedloom.results.group import Group
from fedloom.results.plot_values import ChartRow
from fedloom.results.plots.drawing import CHARACTER, PAGE, TEXT, color, dress, inline, new_figure, place
from fedloom.results.plots.palette import shortened_names, tone_name
from fedloom.results.report import class_results as by_class
from fedloom.results.report.class_results import CalibrationCurve, ClassResults, majority_accuracy
from fedloom.results.report.line_charts import wide_and_narrow
from fedloom.results.report.markup import bullets, chart, choices, fold, grid, paragraph, table
from fedloom.results.report.risk_charts import risk_charts

_HALF = 390.0  # CSS pixels at natural size
_WITH_COUNTS = 12  # classes up to which the cells of a matrix have their counts
_CORRECT, _WRONG = (0.20, 0.49, 0.75), (0.85, 0.42, 0.05)  # mixed by opacity, which suits light and dark themes
_DARKEST = 0.7  # opacity; text on darker cells would be hard to read
_FEW_SAMPLES = 20  # in a bin of calibration: its share of correct predictions may be off by 20 points
_LABEL = 14  # characters of a class's name
_TICK_STEP = 14.0  # CSS pixels between names of classes
_PERCENT = FuncFormatter(lambda value, _: f"{value:g} %")


def _draw_confusion(confusion: Sequence[Sequence[int]], classes: Sequence[str], width: float) -> Figure:
    """Test samples by true class (rows) and predicted class (columns); opacity grows with the share of the row."""
    names = shortened_names(classes, _LABEL)
    room = 40 + CHARACTER * max(map(len, names))
    cell = (width - room - 4) / len(classes)
    height = min(cell, 44.0) * len(classes)
    figure = new_figure(width, height + room + 4)
    axes = place(figure, room, room, 4, 4)
    counts = np.asarray(confusion, dtype=np.float64)
    # At least 1: a class without test samples is an empty row, not 0 / 0.
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    pixels = np.zeros((*counts.shape, 4))
    pixels[..., :3] = np.where(np.eye(len(counts), dtype=bool)[..., None], _CORRECT, _WRONG)
    # The root makes rare confusions visible.
    pixels[..., 3] = _DARKEST * np.sqrt(shares)
    axes.imshow(pixels, aspect="auto", interpolation="none")
    step = ceil(_TICK_STEP / min(cell, height / len(classes)))
    axes.set_yticks(range(0, len(classes), step), names[::step])
    _name_classes(axes, names, step, "predicted class", "true class")
    for k in range(len(classes)) if len(classes) <= _WITH_COUNTS else ():
        for j, samples in enumerate(confusion[k]):
            size = min(TEXT, 1.7 * cell / max(len(_short(samples)), 1))
            axes.text(j, k, _short(samples), color=color("ink"), fontsize=size, ha="center", va="center_baseline")
    return figure


def _name_classes(axes: Axes, names: Sequence[str], step: int, x: str, y: str) -> None:
    dress(axes, PAGE, x, y, grid=None)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=90, ha="center")


def _draw_recall(
    rows: Sequence[tuple[str, float | None, str | None]], accuracy: float, majority: float | None, tone: str
) -> Figure:
    """Recall of each class as a bar, lines at accuracy and majority baseline; rows: name, recall in [0, 1], samples."""
    pitch = 24.0 if len(rows) <= 20 else 17.0
    names = shortened_names([name for name, *_ in rows], 16)
    left = 10 + CHARACTER * max(map(len, names))
    shares = ["no sample" if recall is None else f"{100 * recall:.0f} %" for _, recall, _ in rows]
    texts = [
        text if recall is None or support is None else f"{text} of {support}"
        for text, (_, recall, support) in zip(shares, rows, strict=True)
    ]
    right = max(110.0, min(CHARACTER * max(map(len, texts)), _HALF - left - 40))
    figure = new_figure(_HALF, pitch * len(rows) + 46)
    axes = place(figure, left, 4, right, 42)
    axes.set_xlim(0, 100)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), names)
    _percent_axes(axes, "recall")
    for k, (text, (_, recall, _)) in enumerate(zip(texts, rows, strict=True)):
        axes.add_patch(Rectangle((0, k - 0.3), 100 * (recall or 0.0), 0.6, color=color(tone), linewidth=0))
        ink = color("warn" if recall == 0 else "muted")
        axes.text(103, k, text, color=ink, fontsize=TEXT, va="center_baseline", clip_on=False)
    axes.axvline(100 * accuracy, color=color("ink"), linewidth=1.4)
    if majority is not None:
        axes.axvline(100 * majority, color=color("warn"), linewidth=1.6, linestyle=(0, (4, 2.5)))
    return figure


def _draw_calibration(curve: CalibrationCurve, majority: float | None, tone: str) -> Figure:
    """Share of correct predictions against confidence with the diagonal of perfect calibration, and samples by bin."""
    figure = new_figure(_HALF, 390)
    axes = place(figure, 62, 8, 12, 130)
    axes.set_xlim(0, 100)
    axes.set_ylim(0, 100)
    axes.plot([0, 100], [0, 100], color=color("muted"), linewidth=1.2, linestyle=(0, (2, 2)))
    used = [one for one in curve.bins if one is not None]
    xs, ys = [100 * confidence for _, confidence, _ in used], [100 * correct for *_, correct in used]
    axes.plot(xs, ys, "-", color=color(tone), linewidth=1.8, zorder=3)
    for x, y, (samples, *_) in zip(xs, ys, used, strict=True):
        fill = "none" if samples < _FEW_SAMPLES else color(tone)
        axes.plot(x, y, "o", color=color(tone), markerfacecolor=fill, markersize=6, clip_on=False, zorder=3)
    if majority is not None:
        axes.axhline(100 * majority, color=color("warn"), linewidth=1.6, linestyle=(0, (4, 2.5)))
    _percent_axes(axes, "", "correct", grid="both")
    axes.tick_params(labelbottom=False)
    below = place(figure, 62, 272, 12, 42)
    below.set_xlim(0, 100)
    largest = max(n for n, *_ in used)
    below.set_ylim(0, 1.35 * largest)
    step = 100 / len(curve.bins)
    for k, one in enumerate(curve.bins):
        if one is not None:
            alpha = 0.35 if one[0] < _FEW_SAMPLES else 1.0
            place_of_bar = (k * step + 0.6, 0)
            below.add_patch(Rectangle(place_of_bar, step - 1.2, one[0], color=color("p1"), alpha=alpha, linewidth=0))
            below.text((k + 0.5) * step, one[0], _short(one[0]), color=color("ink"), fontsize=10, ha="center")
    below.set_yticks([])
    _percent_axes(below, "confidence", "samples", grid=None)
    below.yaxis.labelpad = 36  # below the other one's label
    return figure


def _draw_recalls(rows: Sequence[tuple[str, Sequence[float | None]]], classes: Sequence[str], width: float) -> Figure:
    """Recall of every class (columns) by every row as a heat map; opacity grows with recall. width: in CSS pixels."""
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
    axes.set_yticks(range(len(rows)), labels)
    _name_classes(axes, names, step, "class", "")
    for k, (_, recalls) in enumerate(rows if cell >= 20 else ()):
        for j, recall in enumerate(recalls):
            words = "–" if recall is None else f"{100 * recall:.0f}"
            axes.text(j, k, words, color=color("ink"), fontsize=10.5, ha="center", va="center_baseline")
    return figure


def _percent_axes(axes: Axes, x: str, y: str = "", grid: str | None = "x") -> None:
    """Dress axes whose x, and with both grids whose y, is in percent."""
    for axis in (axes.xaxis, axes.yaxis) if grid == "both" else (axes.xaxis,):
        axis.set_major_locator(FixedLocator([0, 25, 50, 75, 100]))
        axis.set_major_formatter(_PERCENT)
    dress(axes, PAGE, x, y, grid)


def _short(samples: float) -> str:
    """A count in at most four characters: 950, 1.2k, 15k."""
    if samples < 1000:
        return f"{samples:.0f}"
    return f"{samples / 1000:.1f}k" if samples < 9950 else f"{samples / 1000:.0f}k"


_MOST_ROWS = 30  # rows whose matrices are drawn; beyond them the page would be large
_MOST_WITH_CLIENTS = 4  # rows of a page that has the counts of all their clients
_MOST_BARS = 40
_NAMED = 5
_MISSING = (
    "These runs recorded no predictions by class. `fedloom evaluate RUN DATA` counts them on labelled data, and every "
    "new run records them."
)


def class_blocks(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render predictions by class and calibration of every row, and a heat map of recalls where there are several."""
    measured = [(row, results) for row in rows if (results := by_class.class_results(row.group)) is not None]
    if not measured:
        return [paragraph(_MISSING)]
    if len(measured) == 1:
        ((row, results),) = measured
        return _row_blocks(0, row.group, results, tone_name(row.tone), with_clients=True)
    blocks, with_clients = _heat_maps(measured), len(measured) <= _MOST_WITH_CLIENTS
    folds = []
    for k, (row, results) in enumerate(measured[:_MOST_ROWS]):
        blocks_of_row = _row_blocks(k, row.group, results, tone_name(row.tone), with_clients)
        folds.append(fold(f"{results.label}: confusion, recall and calibration", blocks_of_row))
    blocks.append(choices("Row", folds))
    if len(measured) > _MOST_ROWS:
        which = f"Matrices of the first {_MOST_ROWS} of {len(measured)} rows"
        blocks.append(paragraph(f"{which}; `fedloom report RUN` draws those of one run."))
    return blocks


def _row_blocks(number: int, group: Group, results: ClassResults, tone: str, with_clients: bool) -> list[Markup]:
    charts = [_confusion(f"confusion-{number}", results)] if results.confusion is not None else []
    charts.append(_recall(f"recall-{number}", group, results, tone))
    calibrated = _calibration(f"calibration-{number}", group, tone)
    charts += [] if calibrated is None else [calibrated]
    charts += risk_charts(f"risk-{number}", group, tone)
    if with_clients:
        clients = by_class.client_matrices(f"client-confusion-{number}", group.results[0], results.classes)
        charts += [] if clients is None else [clients]
    wide = len(results.classes) > _WITH_COUNTS and results.confusion is not None
    blocks = [charts[0], grid(charts[1:])] if wide else [grid(charts)]
    named = results.largest_confusions(_NAMED)
    if named:
        names = results.classes
        sentences = [f"{names[true]} taken for {names[other]}: {samples:,}" for samples, true, other in named]
        blocks += [fold("Most frequent confusions", [bullets(sentences)])]
    return [*blocks, fold(f"All {len(results.classes)} classes as a table", [_table(f"classes-{number}", results)])]


def _confusion(name: str, results: ClassResults) -> Markup:
    assert results.confusion is not None
    correct, total = sum(row[k] for k, row in enumerate(results.confusion)), sum(map(sum, results.confusion))
    label = f"Test samples of {results.label} by true and predicted class: {correct:,} of {total:,} are correct."
    caption = "Rows: true classes, columns: predicted ones. Blue is correct, orange wrong; the darker, the larger the "
    caption += f"share of its row.{f' All {results.seeds} seeds together.' if results.seeds > 1 else ''}"
    title, draw = f"Confusion matrix of {results.label}", partial(_draw_confusion, results.confusion, results.classes)
    if len(results.classes) <= _WITH_COUNTS:
        return chart([inline(partial(draw, _HALF), name, title, label)], "Confusion matrix", caption)
    svgs = wide_and_narrow(draw, name, title, label, 760)
    return chart(svgs, "Confusion matrix", caption, wide=True)


def _recall(name: str, group: Group, results: ClassResults, tone: str) -> Markup:
    rows = list(zip(results.classes, results.recall, results.support_texts(), strict=True))
    caption = "Share of each class that is predicted as it"
    caption += ", of its test samples." if results.support else "."
    if len(rows) > _MOST_BARS:
        rows = sorted(rows, key=lambda row: 2.0 if row[1] is None else row[1])[:_MOST_BARS]
        caption = f"The {_MOST_BARS} classes of {len(results.classes)} with the lowest recall."
    if results.seeds > 1:
        sizes = "; test samples: of one seed" if results.support else ""
        caption += f" Recall: all {results.seeds} seeds together{sizes}."
    accuracy, majority = group.row["accuracy"], majority_accuracy(group)
    caption += f" Solid line: accuracy {percent(accuracy)} %.{_majority_words(group, results, majority)}"
    words = ", ".join(f"{name} {'–' if value is None else percent(value)}" for name, value, _ in rows[:20])
    title, draw = f"Recall of each class, {results.label}", partial(_draw_recall, rows, accuracy, majority, tone)
    svg = inline(draw, name, title, f"Recall in percent: {words}{', ...' if len(rows) > 20 else ''}. {caption}")
    return chart([svg], "Recall of each class", caption)


def _majority_words(group: Group, results: ClassResults, majority: float | None) -> str:
    if majority is None:
        return ""
    label = by_class.majority_class(group.results[0])
    personal = group.row["protocol"].startswith("personal/") and "majority_own" in group.row["metrics"]
    guess = "each client's most frequent class" if personal else "the most frequent class"
    named = f", {results.classes[label]}" if label is not None and not personal else ""
    return f" Dashed line: {percent(majority)} %, the accuracy of always predicting {guess}{named}."


def _calibration(name: str, group: Group, tone: str) -> Markup | None:
    curve = by_class.calibration(group)
    if curve is None:
        return None
    majority = majority_accuracy(group)
    caption = f"ECE {percent(curve.error())} %"
    if len(curve.errors) > 1:
        seeds = f"all {len(group.results)} seeds"
        caption += f" of the bins of {seeds} together, {percent(fmean(curve.errors))} % as a mean over seeds"
    caption += ". Dotted: perfect calibration."
    used = [entry for entry in curve.bins if entry is not None]
    if any(samples < _FEW_SAMPLES for samples, *_ in used):
        caption += f" Hollow dots and pale bars: fewer than {_FEW_SAMPLES} samples."
    caption += "" if majority is None else f" Dashed: majority baseline, {percent(majority)} %."
    shares = ((samples, percent(confidence), percent(correct)) for samples, confidence, correct in used)
    words = "; ".join(f"confidence {sure} %, correct {right} %, {n:,.0f} samples" for n, sure, right in shares)
    draw = partial(_draw_calibration, curve, majority, tone)
    svg = inline(draw, name, f"Calibration of {curve.label}", f"{caption} {words}.")
    return chart([svg], "Calibration", caption)


def _heat_maps(measured: Sequence[tuple[ChartRow, ClassResults]]) -> list[Markup]:
    panels = lists_by_key(((row.panel, *results.classes), (row.method, results.recall)) for row, results in measured)
    maps = []
    for k, ((panel, *classes), cells) in enumerate(panels.items()):
        lowest = ", ".join(f"{label} {_lowest(recalls)}" for label, recalls in cells)
        title = f"Recall of each class by row{f', {panel}' if panel else ''}"
        label = f"Lowest recall over {len(classes)} classes in percent: {lowest}."
        svgs = wide_and_narrow(partial(_draw_recalls, cells, classes), f"recalls-{k}", title, label, 900)
        caption = "Recall in percent. Orange: no test sample of the class is found."
        maps.append(chart(svgs, panel or "Recall by class", caption))
    return maps


def _lowest(recalls: Sequence[float | None]) -> str:
    defined = [recall for recall in recalls if recall is not None]
    return percent(min(defined)) if defined else "–"


def _table(name: str, results: ClassResults) -> Markup:
    sizes = [None] * len(results.classes) if results.support is None else [mean(of) for of in results.support]
    texts = results.support_texts()
    columns = ("class", "test samples", "recall %", "precision %")
    values = list(zip(results.classes, sizes, results.recall, results.precision, strict=True))
    rows: list[list[Cell]] = [
        [label, (text or "–", samples), (or_dash(recall, percent), recall), (or_dash(precision, percent), precision)]
        for text, (label, samples, recall, precision) in zip(texts, values, strict=True)
    ]
    records = [dict(zip(("class", "test_samples", "recall", "precision"), value, strict=True)) for value in values]
    caption = "Test data after the last round."
    if results.seeds > 1:
        caption += f" Recall and precision: all {results.seeds} seeds together. Test samples: of one seed."
    return table(DataTable(name, caption, columns, rows, records=records))
