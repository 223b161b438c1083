"""Parts of a page about runs, in plain words: who knows more than the runs writes them, `fedloom.report` shows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Cell: TypeAlias = str | tuple[str, float | None]


@dataclass(frozen=True, slots=True)
class SectionTable:
    """A table. `name`: its id within the part; `heads`: how many cells, from the first on, name a row.

    A cell of a column of numbers is its text with the number to sort by, or None.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: list[list[Cell]]
    heads: int = 1

    @property
    def numeric(self) -> list[bool]:
        """Of each column, whether it is one of numbers."""
        return [all(isinstance(row[k], tuple) for row in self.rows) for k in range(len(self.columns))]

    @property
    def texts(self) -> list[list[str]]:
        """The rows as a person reads them."""
        return [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in self.rows]


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section. `name`: its id, of which a page has one. `blocks`, in order: a paragraph, a table, or a list.
    `limits`: what a reader of the runs' numbers must not miss."""

    name: str
    title: str
    blocks: list[str | SectionTable | list[str]]
    limits: list[str] = field(default_factory=list)
