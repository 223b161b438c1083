"""Figures whose numbers stand on the page: the rows of their CSV, and the section that shows them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from fedloom.papers.page import listed
from fedloom.papers.recipe import Recipe

Row = dict[str, str]

# By the kind of the figure.
COLUMNS = {
    "costs": ("panel", "row", "seed", "x", "accuracy", "target", "bytes", "flops", "changed"),
    "sweep": ("panel", "row", "seed", "x", "accuracy", "changed"),
}


def read_rows(path: Path, *kinds: str) -> list[Row]:
    """The rows of a figure's CSV, of one of these kinds, or of any: a finished run each.

    Raises `OSError` for a file that cannot be read, `ValueError` for one of another form.
    """
    forms = [COLUMNS[kind] for kind in kinds or COLUMNS]
    with path.open(encoding="utf-8", newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) not in forms:
            needed = " or ".join(", ".join(form) for form in forms)
            raise ValueError(f"{path}: columns {reader.fieldnames}; need {needed}")
        return list(reader)


def in_own_setting(recipe: Recipe, found: Sequence[Row]) -> bool:
    """Whether rows are of the paper's own setting, another value that it searched included."""
    return any(not recipe.beyond(one["changed"].removeprefix("with ").split()) for one in found)


def section(
    recipe: Recipe, found: Sequence[Row], told: Sequence[str], names: Sequence[str], rows: Sequence[Sequence[object]]
) -> str:
    """A figure's section of the page: its setting, what its table means, the table, and what the paper leaves open."""
    setting = found[0]["changed"] or "the paper's own"
    head = [f"## {recipe.paper.paper}, {recipe.table.title}", f"Setting: {setting}."]
    table = tabulate(rows, names, tablefmt="pipe", disable_numparse=True)
    rest = ["Left open by the paper, and what was chosen:", listed(recipe.open)]
    return "\n\n".join([*head, *told, table, *rest]) + "\n"
