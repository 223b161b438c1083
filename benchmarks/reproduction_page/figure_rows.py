"""Committed rows of figures, and the section that shows them on a page."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from fedloom.papers.recipe import Recipe
from fedloom.papers.table_section import bullets

CsvRow = dict[str, str]

# Columns of the CSV file by the kind of the figure.
COLUMNS = {
    "costs": ("panel", "row", "seed", "x", "accuracy", "target", "bytes", "flops", "changed"),
    "sweep": ("panel", "row", "seed", "x", "accuracy", "changed"),
}


def read_rows(path: Path, *kinds: str) -> list[CsvRow]:
    """Read the rows of a figure's CSV, one for each finished run.

    kinds: the kinds of figure that are accepted, e.g. "sweep"; none accepts all.

    Raises `OSError` for a file that cannot be read, `ValueError` for one with other columns.
    """
    headers = [COLUMNS[kind] for kind in kinds or COLUMNS]
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) not in headers:
            needed = " or ".join(", ".join(header) for header in headers)
            raise ValueError(f"{path}: columns {reader.fieldnames}; need {needed}")
        return list(reader)


def in_papers_setting(recipe: Recipe, rows: Sequence[CsvRow]) -> bool:
    """Whether some rows were measured in the paper's own setting; one point of a search is not."""
    return not recipe.paper.searched and any(not row["changed"] for row in rows)


def figure_section(
    recipe: Recipe,
    rows: Sequence[CsvRow],
    explanation: Sequence[str],
    headers: Sequence[str],
    table_rows: Sequence[Sequence[object]],
) -> str:
    """A figure's section of the page: its setting, what its table means, the table, and what the paper leaves open."""
    setting = rows[0]["changed"] or "the paper's own"
    blocks = [f"## {recipe.table.title}", f"Setting: {setting}.", *explanation]
    blocks.append(tabulate(table_rows, headers, tablefmt="pipe", disable_numparse=True))
    if recipe.table.choices:
        blocks += ["Choices where the paper is silent:", bullets(recipe.table.choices)]
    return "\n\n".join(blocks)
