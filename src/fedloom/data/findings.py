"""Findings of an audit of data, and how they are printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

LISTED = 5  # rows, words or owners in a finding
LEAK = "rows of one can stand in training and in test data"


@dataclass(frozen=True, slots=True)
class DataFinding:
    """One flaw of a data set. check: its name. rows: how many are concerned. first_rows: the numbers of the first of
    them, from 1 on; empty where the whole column is meant. rule: a sentence with the measured numbers. key: the config
    key that mends it, or what else does. is_note: a hint that raises no alarm."""

    check: str
    column: str
    rows: int
    first_rows: tuple[int, ...]
    rule: str
    key: str
    is_note: bool = False


class DataFindings(list[DataFinding]):
    """The findings on a data set, alarms first; `print` and a notebook show them as a table."""

    def __repr__(self) -> str:
        return self._recorded()["text/plain"]

    def _repr_html_(self) -> str:
        return self._recorded()["text/html"]

    def _recorded(self) -> dict[str, str]:
        from fedloom.core.console import recorded

        return recorded(lambda console: print_findings(console, self))


def print_findings(console: "Console", findings: Sequence[DataFinding]) -> None:
    """Print the findings to the console, or a line that there are none."""
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    from fedloom.core.console import print_table

    if not findings:
        console.print("The audit found nothing.")
        return
    table = Table(box=SIMPLE_HEAD, header_style="bold")
    for title in ("check", "column", "rows", "finding", "what mends it"):
        # a key is there to be copied, so it is not broken
        table.add_column(title, justify="right" if title == "rows" else "left", no_wrap=title == "what mends it")
    for finding in findings:
        name = f"{finding.check} (note)" if finding.is_note else finding.check
        listed = ", ".join(map(str, finding.first_rows)) + (", …" if finding.rows > len(finding.first_rows) else "")
        where = f" (row{'s' if finding.rows > 1 else ''} {listed})" if finding.first_rows else ""
        cells = (name, finding.column, f"{finding.rows:,}", finding.rule + where, finding.key)
        table.add_row(*map(escape, cells))
    print_table(console, table, wraps=True)
