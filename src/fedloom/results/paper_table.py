"""Tables of plain values, and their text: markdown, LaTeX, CSV, HTML, pandas."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from fedloom.core.errors import ConfigError
from fedloom.results.formats import as_csv, bold, check_format, escaped, escaped_bars, latex_float, table_row

if TYPE_CHECKING:
    import pandas

    from fedloom.runs.storage.run_data import RunData


class Tabular:
    """Add tables to a class with finished runs."""

    __slots__ = ()

    def _runs(self) -> Sequence[RunData]:
        raise NotImplementedError

    def table(self, format: str = "markdown") -> str:
        """Return one row for each group of runs that differ in the seed only, as text in "markdown", "latex" or "csv".

        markdown and latex: accuracy in percent, mean ± sample standard deviation over n seeds; bytes and time per run.
        csv: plain numbers, accuracies as shares in [0, 1], bytes, seconds. Raises `ConfigError` for another format.
        """
        from fedloom.results.formats import formatted

        return formatted(self._runs(), format)

    def _repr_html_(self) -> str:
        return self.table("html")


def frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a pandas DataFrame. Raises `ConfigError` if pandas is not installed."""
    try:
        dataframe: pandas.DataFrame = importlib.import_module("pandas").DataFrame(rows)
    except ImportError:
        raise ConfigError("to_pandas: the package pandas is not installed; install pandas") from None
    return dataframe


@dataclass(frozen=True, slots=True)
class ValueCell:
    """A cell with a value: as text, and as numbers for programs, by the ending of their column's name."""

    text: str
    numbers: Mapping[str, float | int | str | None]
    bold: bool = False


@dataclass(frozen=True, slots=True)
class ValueColumn:
    """A column of values: the setting that stands above it, empty for the only one, and the measure with its unit."""

    setting: str
    measure: str

    @property
    def words(self) -> str:
        """Return the heading in one line."""
        return ", ".join(filter(None, (self.setting, self.measure)))


@dataclass(frozen=True, slots=True)
class PaperTable:
    """A table with named rows.

    Attributes:
        keys: headings of the leading columns, which name a row.
        columns: the columns of values.
        rows: the names of each row, and its cells; None where there is no run.
        caption: a title, without a full stop.
        label: the LaTeX label.
        notes: sentences below the table.
    """

    keys: list[str]
    columns: list[ValueColumn]
    rows: list[tuple[list[str], list[ValueCell | None]]]
    caption: str
    label: str
    notes: list[str]

    def markdown(self) -> str:
        """Return the table in markdown, with its notes below."""
        return self._tabulated("pipe", "**{}**")

    def plain_text(self) -> str:
        """Return the table for a terminal, with a star for bold."""
        return self._tabulated("simple", "{} *").replace("Bold:", "Star:")

    def formatted(self, format: str) -> str:
        """Return the table as text. Raises `ConfigError` for an unknown format."""
        check_format(format)
        match format:
            case "latex":
                return self.latex()
            case "csv":
                return self.csv()
            case "text":
                return self.plain_text()
            case _:
                return self.markdown()

    def csv(self) -> str:
        """Return plain numbers: mean, spread, number of seeds, whether a cell is bold, and which seeds diverged."""
        lines: list[dict[str, Any]] = []
        for names, cells in self.rows:
            line: dict[str, Any] = dict(zip(self.keys, names, strict=True))
            for column, cell in zip(self.columns, cells, strict=True):
                for ending, number in (cell.numbers if cell else {}).items():
                    line[f"{column.words} {ending}".rstrip()] = number
            lines.append(line)
        return as_csv(lines)

    def latex(self) -> str:
        """Return the table as a LaTeX float with caption, label and notes.

        With several settings, the columns have two heading lines: the setting, and the measure.
        """
        body = [table_row([*map(escaped, names), *map(_latex_cell, cells)]) for names, cells in self.rows]
        alignment = "l" * len(self.keys) + "r" * len(self.columns)
        return latex_float(alignment, self._latex_headings(), body, self.caption, self.label, self.notes)

    def _latex_headings(self) -> list[str]:
        keys, columns = [escaped(key) for key in self.keys], self.columns
        if not any(column.setting for column in columns):
            return [table_row([*keys, *(escaped(column.measure) for column in columns)])]
        swapped = len({column.measure for column in columns}) == 1  # the one measure stands above all settings
        upper = [column.measure if swapped else column.setting for column in columns]
        lower = [column.setting if swapped else column.measure for column in columns]
        spans, rules, first = [], [], len(keys) + 1
        for words, members in groupby(upper):
            count = len(list(members))
            spans.append(rf"\multicolumn{{{count}}}{{c}}{{{escaped(words)}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
            first += count
        return [table_row([*[""] * len(keys), *spans]), " ".join(rules), table_row([*keys, *map(escaped, lower)])]

    def _tabulated(self, style: str, emphasis: str) -> str:
        def text(cell: ValueCell | None) -> str:
            return "–" if cell is None else emphasis.format(cell.text) if cell.bold else cell.text

        body = [[*names, *map(text, cells)] for names, cells in self.rows]
        headings = [*self.keys, *(column.words for column in self.columns)]
        if style == "pipe":
            headings, *body = [[*map(escaped_bars, line)] for line in (headings, *body)]
        align = ["left"] * len(self.keys) + ["right"] * len(self.columns)
        table = tabulate(body, headings, tablefmt=style, disable_numparse=True, colalign=align if body else None)
        return f"{table}\n\n{' '.join(self.notes)}"


def _latex_cell(cell: ValueCell | None) -> str:
    if cell is None:
        return "--"
    text = escaped(re.sub(r"-(?=\d)", "−", cell.text))  # a hyphen before a number is a minus sign
    return bold(text) if cell.bold else text
