"""Sections of a study's page beside its runs: progress of the cells, and our values beside a paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text, parse_json, write_atomic

if TYPE_CHECKING:
    from fedloom.papers.recipe import Recipe
    from fedloom.results.page_sections import PageSection

VALUES = "reproduced.csv"
_REPRODUCED = "reproduced.json"


def save_recipe(folder: Path, recipe: Recipe, setting: str) -> None:
    """Keep in a study's folder what it reproduces, and in what setting, for every page that is made of it."""
    write_atomic(folder / _REPRODUCED, json_text({"name": recipe.name, "setting": setting}))


def sections_of_studies(folders: Sequence[Path], with_paper_values: bool = True) -> list[PageSection]:
    """Return the sections of studies.

    Args:
        folders: folders of the studies.
        with_paper_values: also ours beside a paper's values.

    Raises `RunFolderError` for a study that cannot be read.
    """
    if not folders:
        return []
    from fedloom.results.study_progress import progress
    from fedloom.runs.studies.outcome import failed_of, outcome
    from fedloom.runs.studies.study_folder import StudyFolder, read

    sections_of_page: list[PageSection] = []
    studies = [(folder, study) for folder in folders if (study := read(folder)) is not None]
    for number, (folder, study) in enumerate(studies):
        outcomes = outcome(study, StudyFolder(folder), study.cells)
        parts = [progress(study, outcomes)]
        if with_paper_values and (folder / _REPRODUCED).exists():
            parts.insert(0, _paper_section(folder, failed_of(study, outcomes)))
        if number:
            parts = [replace(part, name=f"{part.name}-{number + 1}") for part in parts]
        if len(studies) > 1:
            parts = [_with_folder(part, folder) for part in parts]
        sections_of_page += parts
    return sections_of_page


def _with_folder(part: PageSection, folder: Path) -> PageSection:
    """A part that says which of several studies it is of."""
    return replace(part, title=f"{part.title} ({folder})", limits=[f"{folder}: {text}" for text in part.limits])


def _paper_section(folder: Path, failed: dict[tuple[str, str], dict[int, str]]) -> PageSection:
    from fedloom.papers.measurements import read_measurements
    from fedloom.papers.recipe import find_recipe
    from fedloom.papers.table_section import as_part

    try:
        stored = parse_json((folder / _REPRODUCED).read_text(encoding="utf-8"))
        measurements = read_measurements(folder / VALUES) if (folder / VALUES).exists() else []
        return as_part(find_recipe(stored["name"]), measurements, stored["setting"], failed)
    except (ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())
        raise RunFolderError(
            f"{folder / _REPRODUCED}: damaged ({why}); `fedloom reproduce` with the same words writes it again"
        ) from None
