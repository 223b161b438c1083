"""Rows of a page with the names and the colour that they have in every chart, by setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedloom.results.group import Group, ResultRow
from fedloom.results.plots.palette import dash_number, tone_name, tones_of
from fedloom.results.row_names import panel_titles, row_names
from fedloom.results.verdict import BASELINE


@dataclass(frozen=True, slots=True)
class ChartRow:
    """A group of runs as charts show it.

    method: its name within its setting. panel: the words that tell apart settings and protocols, empty where all rows
    compare. tone: the number of the method's colour and dash, the same in every setting.
    """

    group: Group
    method: str
    panel: str
    tone: int

    @property
    def row(self) -> ResultRow:
        """The numbers of the group."""
        return self.group.row

    @property
    def color(self) -> str:
        """The custom property of the method's colour."""
        return tone_name(self.tone)


def chart_rows(groups: Sequence[Group]) -> list[ChartRow]:
    """Name all rows, and give each method its colour."""
    rows = [group.row for group in groups]
    names = row_names(rows)
    titles = panel_titles(rows, names)
    baseline = next((name.method for name, row in zip(names, rows, strict=True) if row["method"] == BASELINE), None)
    tones = tones_of([name.method for name in names], baseline)
    return [
        ChartRow(group, name.method, title, tones[name.method])
        for group, name, title in zip(groups, names, titles, strict=True)
    ]


def by_panel(rows: Sequence[ChartRow]) -> dict[str, list[ChartRow]]:
    """Group rows by the setting in which they compare, in the order of their first appearance."""
    panels: dict[str, list[ChartRow]] = {}
    for row in rows:
        panels.setdefault(row.panel, []).append(row)
    return panels


def legend(rows: Sequence[ChartRow]) -> list[tuple[str, str, int]]:
    """Return the colour, the name and the number of the dash of every method, each once."""
    return list(dict.fromkeys((row.color, row.method, dash_number(row.tone)) for row in rows))
