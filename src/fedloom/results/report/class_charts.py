"""Charts of classes and confidences: groups in, HTML out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean, mean

from markupsafe import Markup

from fedloom.core.text import percent
from fedloom.results.formats import Format, as_csv, text_table
from fedloom.results.group import Group
from fedloom.results.page_sections import Cell
from fedloom.results.report.chart_rows import ChartRow
from fedloom.results.report.class_figures import (
    WITH_COUNTS,
    draw_calibration,
    draw_confusion,
    draw_recall,
    draw_recalls,
)
from fedloom.results.report.class_results import (
    ClassResults,
    calibration,
    class_results,
    majority_accuracy,
    majority_class,
)
from fedloom.results.report.client_matrices import client_matrices
from fedloom.results.report.markup import bullets, chart, choices, fold, grid, name_cell, paragraph, table
from fedloom.results.report.svg import inline

_MOST_ROWS = 30  # rows whose matrices are drawn; beyond them the page would be large
_MOST_WITH_CLIENTS = 4  # rows of a page that has the counts of all their clients
_MOST_BARS = 40
_NAMED = 5
_FORMATS: dict[str, Format] = {"md": "markdown", "tex": "latex"}
_MISSING = (
    "These runs recorded no predictions by class. `fedloom evaluate RUN DATA` counts them on labelled data, and every "
    "new run records them."
)


def class_blocks(rows: Sequence[ChartRow]) -> list[Markup]:
    """Render predictions by class and calibration of every row, and a heat map of recalls where there are several."""
    measured = [(row, results) for row in rows if (results := class_results(row.group)) is not None]
    if not measured:
        return [paragraph(_MISSING)]
    if len(measured) == 1:
        ((row, results),) = measured
        return _row_blocks(0, row.group, results, row.color, with_clients=True)
    blocks, with_clients = _heat_maps(measured), len(measured) <= _MOST_WITH_CLIENTS
    folds = [
        fold(
            f"{results.label}: confusion, recall and calibration",
            _row_blocks(k, row.group, results, row.color, with_clients),
        )
        for k, (row, results) in enumerate(measured[:_MOST_ROWS])
    ]
    blocks.append(choices("Row", folds))
    if len(measured) > _MOST_ROWS:
        text = (
            f"Matrices of the first {_MOST_ROWS} of {len(measured)} rows; `fedloom report RUN` draws those of one run."
        )
        blocks.append(paragraph(text))
    return blocks


def _row_blocks(number: int, group: Group, results: ClassResults, tone: str, with_clients: bool) -> list[Markup]:
    """Render one row: matrix, recall of each class, calibration, and all classes as a table that folds.

    Args:
        number: index of the row, for the ids of its drawings.
        group: its runs.
        results: its predictions by class.
        tone: the custom property of its colour.
        with_clients: also draw the matrix of any single client of its first run.
    """
    charts = [_confusion(f"confusion-{number}", results)] if results.confusion is not None else []
    charts.append(_recall(f"recall-{number}", group, results, tone))
    calibrated = _calibration(f"calibration-{number}", group, tone)
    charts += [] if calibrated is None else [calibrated]
    clients = client_matrices(f"client-confusion-{number}", group.results[0], results.classes) if with_clients else None
    charts += [] if clients is None else [clients]
    wide = len(results.classes) > WITH_COUNTS and results.confusion is not None
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
    caption += f"share of its row.{_seeds_note(results)}"
    if len(results.classes) <= WITH_COUNTS:
        draw = partial(draw_confusion, results.confusion, results.classes, 390)
        return chart([inline(draw, name, f"Confusion matrix of {results.label}", label)], "Confusion matrix", caption)
    svgs = [
        inline(
            partial(draw_confusion, results.confusion, results.classes, width),
            f"{name}-{css}",
            f"Confusion matrix of {results.label}",
            label,
            css,
        )
        for css, width in (("wide", 760), ("narrow", 360))
    ]
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
    svg = inline(
        partial(draw_recall, rows, accuracy, majority, tone),
        name,
        f"Recall of each class, {results.label}",
        f"Recall in percent: {words}{', ...' if len(rows) > 20 else ''}. {caption}",
    )
    return chart([svg], "Recall of each class", caption)


def _majority_words(group: Group, results: ClassResults, majority: float | None) -> str:
    if majority is None:
        return ""
    label = majority_class(group.results[0])
    personal = group.row["protocol"].startswith("personal/") and "majority_own" in group.row["metrics"]
    guess = "each client's most frequent class" if personal else "the most frequent class"
    named = f", {results.classes[label]}" if label is not None and not personal else ""
    return f" Dashed line: {percent(majority)} %, the accuracy of always predicting {guess}{named}."


def _calibration(name: str, group: Group, tone: str) -> Markup | None:
    curve = calibration(group)
    if curve is None:
        return None
    majority = majority_accuracy(group)
    caption = f"ECE {percent(curve.error())} %"
    if len(curve.errors) > 1:
        seeds = f"all {len(group.results)} seeds"
        caption += f" of the bins of {seeds} together, {percent(fmean(curve.errors))} % as a mean over seeds"
    caption += ". Dotted: perfect calibration."
    caption += "" if majority is None else f" Dashed: majority baseline, {percent(majority)} %."
    words = "; ".join(
        f"confidence {percent(one[1])} %, correct {percent(one[2])} %, {one[0]:,.0f} samples"
        for one in curve.bins
        if one is not None
    )
    svg = inline(
        partial(draw_calibration, curve, majority, tone), name, f"Calibration of {curve.label}", f"{caption} {words}."
    )
    return chart([svg], "Calibration", caption)


def _heat_maps(measured: Sequence[tuple[ChartRow, ClassResults]]) -> list[Markup]:
    """Render the recalls of all rows by class, a map for each setting."""
    panels: dict[tuple[str, ...], list[tuple[str, list[float | None]]]] = {}
    for row, results in measured:
        panels.setdefault((row.panel, *results.classes), []).append((row.method, results.recall))
    maps = []
    for k, ((panel, *classes), cells) in enumerate(panels.items()):
        lowest = ", ".join(f"{label} {_lowest(recalls)}" for label, recalls in cells)
        svgs = [
            inline(
                partial(draw_recalls, cells, classes, width),
                f"recalls-{k}-{css}",
                f"Recall of each class by row{f', {panel}' if panel else ''}",
                f"Lowest recall over {len(classes)} classes in percent: {lowest}.",
                css,
            )
            for css, width in (("wide", 900), ("narrow", 360))
        ]
        caption = "Recall in percent. Orange: no test sample of the class is found."
        maps.append(chart(svgs, panel or "Recall by class", caption))
    return maps


def _lowest(recalls: Sequence[float | None]) -> str:
    defined = [recall for recall in recalls if recall is not None]
    return percent(min(defined)) if defined else "–"


def _table(name: str, results: ClassResults) -> Markup:
    columns = ("class", "test samples", "recall %", "precision %")
    sizes = [None] * len(results.classes) if results.support is None else [mean(of) for of in results.support]
    values = list(zip(results.classes, sizes, results.recall, results.precision, strict=True))
    rows: list[list[Cell]] = [
        [name_cell(label), (text or "–", samples), _share(recall), _share(precision)]
        for text, (label, samples, recall, precision) in zip(results.support_texts(), values, strict=True)
    ]
    plain = [
        {"class": label, "test_samples": samples, "recall": recall, "precision": precision}
        for label, samples, recall, precision in values
    ]
    texts = [[label, *(cell[0] for cell in row[1:])] for (label, *_), row in zip(values, rows, strict=True)]
    numeric = (False, True, True, True)
    saved = {end: text_table(texts, columns, numeric, form) for end, form in _FORMATS.items()}
    headings = [f"{column[:1].upper()}{column[1:]}" for column in columns]
    caption = "Test data after the last round."
    if results.seeds > 1:
        caption += f" Recall and precision: all {results.seeds} seeds together. Test samples: of one seed."
    return table(f"{name}-note", caption, headings, set(headings[1:]), rows, {"csv": as_csv(plain)} | saved)


def _share(value: float | None) -> tuple[str, float | None]:
    return "–" if value is None else percent(value), value


def _seeds_note(results: ClassResults) -> str:
    return f" All {results.seeds} seeds together." if results.seeds > 1 else ""
