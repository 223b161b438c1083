"""The table of the values that tuning chose, which folds."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from fedloom.core.text import counted
from fedloom.results.formats import as_csv
from fedloom.results.page_sections import Cell
from fedloom.results.report.markup import fold, name_cell, paragraph, table, words_cell
from fedloom.runs.storage.finished_runs import TuningChoice

_NAMED = 3


def tuning_blocks(choices: Sequence[TuningChoice]) -> list[Markup]:
    """Render the values that were chosen for each row, and the scores of all that were tried."""
    if not choices:
        return []
    keys = list(dict.fromkeys(key for choice in choices for key in choice.chosen))
    body: list[list[Cell]] = [
        [
            name_cell(choice.group),
            *(str(choice.chosen.get(key, "–")) for key in keys),
            (choice.score_text, choice.score),
            words_cell("; ".join(choice.trials)),
        ]
        for choice in choices
    ]
    plain = [
        {"row": choice.group, **choice.chosen, "validation": choice.score, "tried": "; ".join(choice.trials)}
        for choice in choices
    ]
    rules = " or ".join(dict.fromkeys(choice.rule for choice in choices))
    columns = ("Row", *keys, "Validation", "Tried")
    caption = f"Chosen on validation data: {rules}."
    most = max(len(choice.trials) for choice in choices)
    sheet = table("tuning-note", caption, columns, {"Validation"}, body, {"csv": as_csv(plain)})
    summary = f"{', '.join(keys[:_NAMED])} for {counted(len(choices), 'row')}, {counted(most, 'trial')} each"
    return [paragraph("Each row has the values that were best on its own validation data."), fold(summary, [sheet])]
