"""The summary of runs: rows of plain values that print as a table."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from fedloom.core.errors import printable
from fedloom.core.text import percent
from fedloom.results.formats import columns_for, text_table
from fedloom.results.group import ResultRow
from fedloom.runs.storage.run_data import RunData

_KEYS = ("method", "preset", "seed", "protocol", "select", "accuracy", "best_val_accuracy", "rounds")
_SHARES = {"accuracy": "accuracy %", "best_val_accuracy": "best val %"}
_LEFT_ALIGNED = {"method", "preset", "protocol", "select", "cell", "state"}
_COMPARED = {"method", "preset", "n", "up", "down", "time", "diverged", "attack", "success %", *_SHARES.values()}


class Summary(list[Mapping[str, Any]]):
    """Rows of plain values, for `pandas.DataFrame` too. `print` shows them as a table, and so does a notebook.

    notes: sentences below the table.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        cells: Sequence[Sequence[str]],
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(rows)
        self._columns, self._cells, self.notes = list(columns), [list(row) for row in cells], list(notes)

    def __repr__(self) -> str:
        cells = [[printable(cell) for cell in row] for row in self._cells]
        align = self._align() if cells else None
        table = tabulate(cells, self._columns, "simple", colalign=align, disable_numparse=True)
        return "\n".join([table, *map(printable, self.notes)])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        table = text_table(self._cells, self._columns, [side == "right" for side in self._align()], "html")
        return table + "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)

    def _align(self) -> list[str]:
        return ["left" if column in _LEFT_ALIGNED else "right" for column in self._columns]


def summary_rows(run: RunData) -> list[dict[str, Any]]:
    """Return a row for each protocol of a run: its setting, its accuracies as shares in [0, 1], and the method's
    figures."""
    views = [run.in_protocol(protocol).numbers for protocol in run.protocols]
    return [{key: numbers[key] for key in _KEYS} | numbers.get("figures", {}) for numbers in views]


def run_summary(run: RunData) -> Summary:
    """Return the summary of one run; its notes say where the run ended early and what its diagnostics found."""
    rows, numbers = summary_rows(run), run.numbers
    columns = [_SHARES.get(key, key) for key in rows[0]]
    cells = [[_text(key, value) for key, value in row.items()] for row in rows]
    stopped = numbers.get("stopped")
    notes = [f"stopped after round {stopped['round']}: {stopped['reason']}"] if stopped else []
    return Summary(rows, columns, cells, notes + [f"note: {message}" for message in numbers["degenerate"]])


def comparison_summary(rows: Sequence[ResultRow], verdict: str) -> Summary:
    """Return the summary of a comparison: a row for each group of runs that differ in the seed only.

    Args:
        rows: the rows of its table.
        verdict: what the comparison shows, in words.
    """
    columns: dict[str, Callable[[ResultRow], str]] = {name: text for name, _, text in columns_for(rows)}
    several = {"protocol"} if len({row["protocol"] for row in rows}) > 1 else set()
    shown = {name: text for name, text in columns.items() if name in _COMPARED | several}
    cells = [[text(row) for text in shown.values()] for row in rows]
    measured = sorted({f"protocol {row['protocol']}, round selected: {row['select']}" for row in rows})
    if several and len({row["select"] for row in rows}) == 1:
        measured = [f"round selected: {rows[0]['select']}"]
    notes = [f"accuracy: mean ± sample std over n seeds; {'; '.join(measured)}", verdict] if rows else []
    notes += [f"{row['label']}: {note}" for row in rows for note in (*row["stopped"], *row["degenerate"])]
    return Summary([dict(row) for row in rows], list(shown), cells, notes)


def _text(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if key in _SHARES:
        return percent(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
