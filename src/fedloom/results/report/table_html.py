"""The tables of results and of costs as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from fedloom.core.text import bytes_text, percent, seconds_text
from fedloom.results.formats import ATTACK_NOTE, Format, as_csv, optional_columns, text_table
from fedloom.results.measured import display_name
from fedloom.results.page_sections import Cell
from fedloom.results.paired import Paired
from fedloom.results.plots.palette import dash_number
from fedloom.results.report.chart_rows import ChartRow, by_panel
from fedloom.results.report.class_results import majority_accuracy
from fedloom.results.report.markup import accuracy_cell, name_cell, table, words_cell
from fedloom.results.table import figure_names, figure_text

_UNIFORM = ("preset", "protocol", "select")
_COSTS = ("up", "down", "time", "memory MiB")
_FORMATS: dict[str, Format] = {"md": "markdown", "tex": "latex"}


def numbers_table(rows: Sequence[ChartRow], pairs: Sequence[Paired], saved: Mapping[str, str]) -> Markup:
    """Render the results, a row a group, with the word of the comparison with the baseline.

    What all rows share stands in the caption, and the majority baseline of each setting below the rows.

    Args:
        rows: rows of the table of results.
        pairs: comparisons with the baseline.
        saved: as `markup.table` takes it.
    """
    plain = [row.row for row in rows]
    figures, several = figure_names(plain), len({row.panel for row in rows}) > 1
    optional = [column for column in optional_columns(plain) if not column[0].startswith("majority_")]
    measured = {name for row in plain for name in row["metrics"]}
    metrics = [column for column in optional if _metric(column[0]) in measured]
    others = [column for column in optional if column not in metrics]
    varying = [name for name in _UNIFORM if len({str(row[name]) for row in plain}) > 1]  # type: ignore[literal-required]
    shown = [name for name in varying if name == "preset" or not several]  # settings name the others
    pair_by_label: dict[str, Paired] = {}
    for pair in pairs:
        pair_by_label.setdefault(pair.label, pair)
    method_by_label = {row.row["label"]: row.method for row in rows}
    names = {method_by_label[pair.reference] for pair in pairs}
    reference = names.pop() if len(names) == 1 else "the baseline"
    columns = ["method", *(["setting"] if several else []), "accuracy %"]
    columns += [f"against {reference}"] if pairs else []
    columns += [
        *(name for name, *_ in metrics),
        *figures,
        "n",
        "at best val %",
        *shown,
        *(name for name, *_ in others),
    ]
    body: list[list[Cell]] = []
    for chart_row, row in zip(rows, plain, strict=True):
        cells: list[Cell] = [name_cell(chart_row.method, chart_row.color, dash_number(chart_row.tone))]
        cells += [words_cell(chart_row.panel)] if several else []
        cells += [(_accuracy(row["accuracy"], row["std"]), row["accuracy"])]
        cells += [_against(pair_by_label.get(row["label"]))] if pairs else []
        cells += [(text(row), row["metrics"].get(_metric(name))) for name, _, text in metrics]
        cells += [(figure_text(row, name), row["figures"].get(name)) for name in figures]
        cells += [(str(row["n"]), row["n"]), (_or_dash(row["best_val"]), row["best_val"])]
        cells += [str(row[name]) for name in shown]  # type: ignore[literal-required]
        cells += [(text(row), row["attack_success"]) if number else text(row) for _, number, text in others]
        body.append(cells)
    caption = "Test accuracy in percent, mean ± sample standard deviation over n seeds."
    if any(pair.outcome.addition for pair in pairs):
        caption += " A star: the interval alone leaves out zero, or the exact check disagrees."
    shared = ", ".join(f"{name} {plain[0][name]}" for name in _UNIFORM if name not in varying)  # type: ignore[literal-required]
    caption += f" All rows: {shared}." if shared else ""
    if any(row["attack"] for row in plain):
        caption += f" {ATTACK_NOTE[0].upper()}{ATTACK_NOTE[1:]}."
    numeric = {"accuracy %", f"against {reference}", *figures, "n", "at best val %"}
    numeric |= {name for name, number, _ in optional if number}
    return table(
        "results-note",
        caption,
        [_heading(name) for name in columns],
        {_heading(name) for name in numeric},
        body,
        saved,
        foot=_majority_rows(rows, len(columns), several),
    )


def costs_table(rows: Sequence[ChartRow]) -> Markup:
    """Render bytes, seconds and memory of a run, a row a group."""
    plain = [row.row for row in rows]
    up, down = max(row["bytes_up"] for row in plain), max(row["bytes_down"] for row in plain)
    time, several = max(row["seconds"] for row in plain), len({row.panel for row in rows}) > 1
    columns = ["method", *(["setting"] if several else []), *_COSTS]
    body: list[list[Cell]] = []
    texts = []
    for chart_row, row in zip(rows, plain, strict=True):
        numbers = [
            (bytes_text(row["bytes_up"], up), row["bytes_up"]),
            (bytes_text(row["bytes_down"], down), row["bytes_down"]),
            (seconds_text(row["seconds"], time), row["seconds"]),
            (f"{row['peak_memory_mb']:,.0f}", row["peak_memory_mb"]),
        ]
        setting = [chart_row.panel] if several else []
        body.append(
            [
                name_cell(chart_row.method, chart_row.color, dash_number(chart_row.tone)),
                *map(words_cell, setting),
                *numbers,
            ]
        )
        texts.append([chart_row.method, *setting, *(text for text, _ in numbers)])
    keys = ("label", "bytes_up", "bytes_down", "seconds", "peak_memory_mb")
    csv = as_csv([{key: row[key] for key in keys} for row in plain])  # type: ignore[literal-required]
    numeric = [name in _COSTS for name in columns]
    saved = {"csv": csv} | {end: text_table(texts, columns, numeric, form) for end, form in _FORMATS.items()}
    caption = "One run, all clients and rounds; mean over seeds, memory the largest."
    return table("costs-note", caption, [_heading(name) for name in columns], set(map(_heading, _COSTS)), body, saved)


def _metric(heading: str) -> str:
    """The name of a metric, whose heading ends in its unit."""
    return heading.partition(" ")[0]


def _majority_rows(rows: Sequence[ChartRow], columns: int, several: bool) -> list[list[Cell]]:
    """The accuracy of always predicting the most frequent class, for each setting where it is known."""
    foot: list[list[Cell]] = []
    for panel, members in by_panel(rows).items():
        share = next((m for member in members if (m := majority_accuracy(member.group)) is not None), None)
        if share is None:
            continue
        personal = members[0].row["protocol"].startswith("personal/")
        guess = "own majority class" if personal else "majority class"
        cells: list[Cell] = [name_cell(guess), *([words_cell(panel)] if several else []), _accuracy(share, None)]
        foot.append([*cells, *("" for _ in range(columns - len(cells)))])
    return foot


def _against(pair: Paired | None) -> tuple[str | Markup, float | None]:
    if pair is None:
        return "–", None
    outcome = pair.outcome
    mark = " *" if outcome.addition else ""
    points = f"{100 * outcome.mean:+.1f}".replace("-0.0", "+0.0")
    return words_cell(f"{points}, {outcome.word}{mark}"), outcome.mean


def _accuracy(mean: float, std: float | None) -> Markup:
    return accuracy_cell(percent(mean), "" if std is None else percent(std))


def _or_dash(share: float | None) -> str:
    return "–" if share is None else percent(share)


def _heading(name: str) -> str:
    measure, *unit = name.split(" ", 1)
    words = " ".join([display_name(measure), *unit])
    return name if name == "n" else f"{words[:1].upper()}{words[1:]}"
