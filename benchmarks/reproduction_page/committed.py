"""The committed measurements of each paper: values of tables, rows of figures, and hours of what was not run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedloom.core.files import parse_json
from fedloom.papers.measurements import Measurement, read_measurements
from fedloom.papers.recipe import Recipe, recipes
from reproduction_page.figure_rows import COLUMNS, CsvRow, in_papers_setting, read_rows


@dataclass(frozen=True, slots=True)
class PaperResults:
    """All measurements of one paper. A table that was run in several settings is in `tables` several times."""

    name: str  # feddw
    recipes: dict[str, Recipe] = field(default_factory=dict)
    tables: list[tuple[Recipe, list[Measurement]]] = field(default_factory=list)
    figures: list[tuple[Recipe, list[CsvRow]]] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The paper's name as printed, e.g. Fed-CO2."""
        return next(iter(self.recipes.values())).paper.title

    @property
    def runnable(self) -> list[str]:
        """The recipes that run something."""
        return [name for name, recipe in self.recipes.items() if recipe.table.why_not_run is None]

    @property
    def measured(self) -> set[str]:
        """The recipes of which something was measured, in whatever setting."""
        return {recipe.name for recipe, _ in (*self.tables, *self.figures)}

    @property
    def in_papers_setting(self) -> set[str]:
        """The recipes of which something was measured in the paper's own setting."""
        tables = {recipe.name for recipe, values in self.tables if any(value.comparable for value in values)}
        return tables | {recipe.name for recipe, rows in self.figures if in_papers_setting(recipe, rows)}


@dataclass(frozen=True, slots=True)
class PlannedHours:
    """Core hours of recipes by name, and the machine on which they were estimated; empty where nothing is known."""

    by_recipe: Mapping[str, float]
    machine: str


def read_results(folder: Path) -> list[PaperResults]:
    """Read the measurements of every paper.

    Values of a table are in `folder/PAPER-TABLE.csv`, those of other settings in `folder/PAPER-TABLE-WORD.csv`. Rows of
    figures of the kinds `costs` and `sweep` have files named alike.

    Raises `OSError` for a file that cannot be read, `ValueError` for one with other columns.
    """
    papers: dict[str, PaperResults] = {}
    for name, recipe in recipes().items():
        home = name.partition("/")[0]
        paper = papers.setdefault(home, PaperResults(home))
        paper.recipes[name] = recipe
        kind = recipe.table.kind
        for path in _files(folder, name):
            if kind in COLUMNS:
                if rows := read_rows(path, kind):
                    paper.figures.append((recipe, rows))
            elif values := read_measurements(path):
                paper.tables.append((recipe, values))
    return list(papers.values())


def read_hours(path: Path) -> PlannedHours:
    """Read what `fedloom reproduce --list --json` printed."""
    if not path.exists():
        return PlannedHours({}, "")
    planned = parse_json(path.read_text(encoding="utf-8"))
    return PlannedHours({table["name"]: table["hours"] for table in planned["tables"]}, planned["machine"])


def _files(folder: Path, name: str) -> list[Path]:
    stem = name.replace("/", "-")
    return sorted([*folder.glob(f"{stem}.csv"), *folder.glob(f"{stem}-*.csv")], key=lambda path: path.stem)
