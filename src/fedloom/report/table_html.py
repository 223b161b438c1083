"""The result table as HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from fedloom.plots.palette import tone_name
from fedloom.report.markup import accuracy_cell, name_cell, table
from fedloom.report.measures import tones
from fedloom.results.formats import ATTACK_NOTE, optional_columns
from fedloom.results.page_sections import Cell
from fedloom.results.table import ResultRow, figure_names, figure_text
from fedloom.results.text import bytes_text, percent, seconds_text

_NUMBERS = ("Accuracy %", "n", "At best val %", "Up", "Down", "Time")
_WORDS = ("Preset", "Protocol", "Select")


def numbers_table(rows: Sequence[ResultRow], saved: Mapping[str, str]) -> Markup:
    """Render the results, a row a group; bytes and seconds are those of a run.

    Args:
        rows: rows of the table of results.
        saved: as `markup.table` takes it.
    """
    up, down = max(row["bytes_up"] for row in rows), max(row["bytes_down"] for row in rows)
    time, figures = max(row["seconds"] for row in rows), figure_names(rows)
    optional = optional_columns(rows)
    body: list[list[Cell]] = [
        [
            name_cell(row["label"], tone_name(tone)),
            (_accuracy(row), row["accuracy"]),
            (str(row["n"]), row["n"]),
            ("–" if row["best_val"] is None else percent(row["best_val"]), row["best_val"]),
            (bytes_text(row["bytes_up"], up), row["bytes_up"]),
            (bytes_text(row["bytes_down"], down), row["bytes_down"]),
            (seconds_text(row["seconds"], time), row["seconds"]),
            *((figure_text(row, name), row["figures"].get(name)) for name in figures),
            row["preset"],
            row["protocol"],
            row["select"],
            *(
                (
                    (text(row), row["metrics"].get(name.partition(" ")[0], row["attack_success"]))
                    if number
                    else text(row)
                )
                for name, number, text in optional
            ),
        ]
        for row, tone in zip(rows, tones(rows), strict=True)
    ]
    caption = "Test accuracy in percent, mean ± sample standard deviation over n seeds; bytes and time per run."
    columns = ("Method", *_NUMBERS, *(name.capitalize() for name in figures), *_WORDS)
    columns += tuple(name.capitalize() for name, _, _ in optional)
    numbers = {*_NUMBERS, *(name.capitalize() for name in figures)}
    numbers |= {name.capitalize() for name, number, _ in optional if number}
    if any(row["attack"] for row in rows):
        caption += f" {ATTACK_NOTE[0].upper()}{ATTACK_NOTE[1:]}."
    return table("results-note", caption, columns, numbers, body, saved)


def _accuracy(row: ResultRow) -> Markup:
    return accuracy_cell(percent(row["accuracy"]), "" if row["std"] is None else percent(row["std"]))


def _to_sort(row: ResultRow, column: str) -> float | None:
    """Return the number of a column of metrics or attacks, whose heading ends in the unit."""
    return row["metrics"].get(column.partition(" ")[0], row["attack_success"])
