"""One table: headings, rows of cells, and the same rows as plain records; and its text in every format."""

import csv
import importlib
import io
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeAlias, TypeVar, get_args

from tabulate import tabulate

from fedloom.core.errors import ConfigError, check_choice
from fedloom.core.text import seeds_text

if TYPE_CHECKING:
    import pandas

Format = Literal["markdown", "latex", "csv", "text"]
Cell: TypeAlias = str | tuple[str, float | None]
Record: TypeAlias = Mapping[str, Any]
Row = TypeVar("Row")

_SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "−": "$-$",
    "·": r"$\cdot$",
    "|": r"\textbar{}",
}
_COMMAND = re.compile(r"\\[a-z]+(\{\d+\}\{c\})?|[{}$&\\]")  # no letter of the page
_COLUMN, _PAGE = 55, 95  # characters that fit in a column, and over the page
_NO_RUN = "–"


@dataclass(frozen=True, slots=True)
class Field(Generic[Row]):
    """A column: its heading, the text of a row, and the number by which readers sort; None for words."""

    heading: str
    text: Callable[[Row], str]
    number: Callable[[Row], float | None] | None = None

    @classmethod
    def of(cls, heading: str, number: Callable[[Row], float | None], text: Callable[[float], str]) -> Self:
        """Return a column of a `number` of each row as `text`, with a dash for None."""
        return cls(heading, lambda row: or_dash(number(row), text), number)

    def cell(self, row: Row) -> Cell:
        """Return the cell of a row: its text, with its number in a column of numbers."""
        return self.text(row) if self.number is None else (self.text(row), self.number(row))


@dataclass(frozen=True, slots=True)
class DataTable:
    """A table for people and programs. Every table of results, of a paper and of a page is one.
    - name, label: its id within a page, and in LaTeX.
    - caption, title: sentences below it in a page, and its caption in LaTeX, without a full stop.
    - rows: the cells. A number is a pair of its text and the value to sort by, or None.
    - heads: number of leading cells that name a row. folds: whether it opens on a click only, in a page.
    - records: the rows as plain values for programs; None for the texts.
    - notes: sentences below it, except in CSV. bold: row and column of the bold cells.
    - above: what stands above the columns, such as settings."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    heads: int = 1
    folds: bool = False
    records: Sequence[Record] | None = None
    title: str = ""
    label: str = "tab:results"
    notes: Sequence[str] = ()
    bold: Collection[tuple[int, int]] = ()
    above: Sequence[str] = ()

    @classmethod
    def of(cls, name: str, caption: str, columns: Sequence[Field[Row]], rows: Sequence[Row], **keys: Any) -> Self:
        """Make a table from rows of any type, whose cells the columns know; the rest are its attributes."""
        cells = [[column.cell(row) for column in columns] for row in rows]
        return cls(name, caption, [column.heading for column in columns], cells, **keys)

    @property
    def numeric(self) -> list[bool]:
        """Whether each column is numeric."""
        return [all(isinstance(row[k], tuple) for row in self.rows) for k in range(len(self.columns))]

    @property
    def texts(self) -> list[list[str]]:
        """The texts of all cells, row by row."""
        return [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in self.rows]

    def formatted(self, format: str) -> str:
        """Return it as "markdown", "latex", "text", "csv" (plain values) or "html"; `ConfigError` for others."""
        match format:
            case "markdown":
                return self._tabulated("pipe", "**{}**")
            case "text":
                return self._tabulated("simple", "{} *").replace("Bold:", "Star:")
            case "html":
                return self._tabulated("html", "{}")
        check_choice("format", format, get_args(Format))
        if format == "latex":
            return self._latex()
        texts = [dict(zip(self.columns, row, strict=True)) for row in self.texts]
        return as_csv(texts if self.records is None else self.records)

    def _tabulated(self, style: str, emphasis: str) -> str:
        above = self.above or [""] * len(self.columns)
        headings = [", ".join(filter(None, words)) for words in zip(above, self.columns, strict=True)]
        lines = [headings, *self._emphasised(self.texts, emphasis)]
        if style == "pipe":
            lines = [[cell.replace("|", r"\|") for cell in line] for line in lines]  # a bar would end the cell
        align = ["right" if number else "left" for number in self.numeric] if self.rows else None
        table = tabulate(lines[1:], lines[0], tablefmt=style, disable_numparse=True, colalign=align)
        return "\n\n".join(filter(None, (table, " ".join(self.notes))))

    def _emphasised(self, texts: list[list[str]], emphasis: str) -> list[list[str]]:
        return [
            [emphasis.format(text) if (r, c) in self.bold else text for c, text in enumerate(row)]
            for r, row in enumerate(texts)
        ]

    def _latex(self) -> str:
        """Return a LaTeX float, whose preamble needs booktabs. A wide one takes the page, and small letters."""
        body = [
            [escaped(cell if isinstance(cell, str) else re.sub(r"(?<![\w.])-(?=\d)", "−", cell[0])) for cell in row]
            for row in self.rows
        ]
        lines = [*self._latex_headings(), *map(table_row, self._emphasised(body, r"\textbf{{{}}}"))]
        cut = len(lines) - len(body)
        alignment = "".join("r" if number else "l" for number in self.numeric)
        named = [rf"  \caption{{{escaped(self.title)}.}}", rf"  \label{{{self.label}}}"] if self.title else []
        small = [rf"  \par\smallskip{{\footnotesize {escaped(' '.join(self.notes))}\par}}"] if self.notes else []
        widest = max(len(_COMMAND.sub("", line)) for line in lines)
        float_name, size = "table*" if widest > _COLUMN else "table", r"\footnotesize" if widest > _PAGE else ""
        return "\n".join(
            (
                r"% \usepackage{booktabs}",
                rf"\begin{{{float_name}}}[tb]",
                rf"  \centering{size}",
                *named,
                rf"  \begin{{tabular}}{{@{{}}{alignment}@{{}}}}",
                r"    \toprule",
                *(f"    {line}" for line in lines[:cut]),
                r"    \midrule",
                *(f"    {line}" for line in lines[cut:]),
                r"    \bottomrule",
                r"  \end{tabular}",
                *small,
                rf"\end{{{float_name}}}",
            )
        )

    def _latex_headings(self) -> list[str]:
        """Return the line of headings, or two with a rule between them where something stands above the columns."""
        if not any(self.above):
            return [table_row([*map(escaped, self.columns)])]
        keys, upper, lower = self.columns[: self.heads], self.above[self.heads :], self.columns[self.heads :]
        if len(set(lower)) == 1:  # the one measure stands above all settings
            upper, lower = lower, upper
        spans, rules, first = [], [], self.heads + 1
        for words, members in groupby(upper):
            count = len(list(members))
            spans.append(rf"\multicolumn{{{count}}}{{c}}{{{escaped(words)}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + count - 1}}}")
            first += count
        return [table_row([*[""] * self.heads, *spans]), " ".join(rules), table_row([*map(escaped, (*keys, *lower))])]


def escaped(text: str) -> str:
    """Return text whose signs LaTeX prints as they are.

    >>> print(escaped("a_b ± 5 %"))
    a\\_b $\\pm$ 5 \\%
    """
    return "".join(_SIGNS.get(sign, sign) for sign in " ".join(text.split()))


def table_row(texts: Sequence[str]) -> str:
    """Return escaped texts as a line of a tabular."""
    line = f"{' & '.join(texts)} \\\\"
    return f"{{}}{line}" if line[0] in "[*" else line  # the rule or line break above would take these as its option


def as_csv(records: Sequence[Record]) -> str:
    """Return records as CSV with a header of all keys in the order of their first appearance; None is an empty cell."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, dict.fromkeys(key for record in records for key in record), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return stream.getvalue().rstrip("\n")


def frame(records: Sequence[Record]) -> "pandas.DataFrame":
    """Return records as a pandas DataFrame. Raises `ConfigError` if pandas is not installed."""
    try:
        dataframe: pandas.DataFrame = importlib.import_module("pandas").DataFrame(records)
    except ImportError:
        raise ConfigError("the package pandas is not installed; install pandas") from None
    return dataframe


def or_dash(value: float | None, text: Callable[[float], str]) -> str:
    """Return a number in words, or a dash for None."""
    return _NO_RUN if value is None else text(value)


def diverged_field(seeds: Sequence[int]) -> dict[str, str]:
    """Return the field of a record that names the seeds of diverged runs; empty if none diverged."""
    return {"diverged": " ".join(map(str, seeds))} if seeds else {}


def label_with_notes(label: str, note: str | None, diverged: Sequence[int]) -> str:
    """Return a row's label, and in brackets what one has to know of it: a note, and the seeds of diverged runs.

    >>> label_with_notes("fedgh", None, [1])
    'fedgh (diverged with seed 1)'
    """
    text = "; ".join(filter(None, (note, f"diverged with {seeds_text(diverged)}" if diverged else None)))
    return f"{label} ({text})" if text else label
