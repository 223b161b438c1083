"""Sections of a report. Studies and reproductions create them; `fedloom.results.report` renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Cell: TypeAlias = str | tuple[str, float | None]


@dataclass(frozen=True, slots=True)
class SectionTable:
    """A table. `name`: its id within the section; `heads`: number of leading cells that name a row. `folds`: whether it
    opens on a click only.

    A cell of a numeric column is a pair of its text and the number to sort by, or None.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: list[list[Cell]]
    heads: int = 1
    folds: bool = False

    @property
    def numeric(self) -> list[bool]:
        """Return for each column whether it is numeric."""
        return [all(isinstance(row[k], tuple) for row in self.rows) for k in range(len(self.columns))]

    @property
    def texts(self) -> list[list[str]]:
        """Return the texts of all cells, row by row."""
        return [[cell if isinstance(cell, str) else cell[0] for cell in row] for row in self.rows]


@dataclass(frozen=True, slots=True)
class SectionPicture:
    """A picture, which the report draws from plain values.

    Attributes:
        name: its id within the section.
        kind: what is drawn, a key of `fedloom.results.report.section_pictures.DRAWINGS`.
        values: what the drawing needs, as JSON values.
        title: its title.
        caption: text below the title.
        description: what it shows, for people who do not see it.
    """

    name: str
    kind: str
    values: Mapping[str, Any]
    title: str
    caption: str
    description: str


Block: TypeAlias = str | list[str] | SectionTable | SectionPicture


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of paragraphs, lists, tables and pictures. `name`: its id, unique in a page. `limits`: cautions about
    numbers."""

    name: str
    title: str
    blocks: Sequence[Block]
    limits: list[str] = field(default_factory=list)
