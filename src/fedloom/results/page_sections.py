"""Sections of a report and of the progress of a study. Studies and reproductions make them; the report renders them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from fedloom.core.text import counted, listed, lists_by_key, seeds_text
from fedloom.results.data_table import Cell, DataTable

if TYPE_CHECKING:
    from fedloom.runs.studies.outcome import Outcome
    from fedloom.runs.studies.plan import Cell as Planned
    from fedloom.runs.studies.plan import StudyPlan


@dataclass(frozen=True, slots=True)
class SectionPicture:
    """A picture of lengths by round, stacked. name: its id within the section. parts: three lists, a length a round.
    text: for people who do not see it."""

    name: str
    rounds: Sequence[int]
    parts: Mapping[str, Sequence[float]]
    title: str
    caption: str
    text: str


Block: TypeAlias = str | list[str] | DataTable | SectionPicture


@dataclass(frozen=True, slots=True)
class PageSection:
    """A section of paragraphs, lists, tables and pictures. `name`: its id, unique in a page. `limits`: cautions about
    numbers."""

    name: str
    title: str
    blocks: Sequence[Block]
    limits: list[str] = field(default_factory=list)


def progress(study: StudyPlan, ended: Outcome) -> PageSection:
    """Return the section on done, failed and remaining seeds of each row, from the outcome `ended` of all cells."""
    done, failed, remaining = ended.done.keys(), ended.failed.keys(), set(ended.remaining)
    summary = (
        f"{len(done)} of {counted(len(study.cells), 'cell')} done, {len(failed)} failed, {len(remaining)} not run yet"
        + (f", {len(ended.spared)} spared because their rows are decided" if ended.spared else "")
    )
    groups = lists_by_key((cell.group, cell) for cell in study.cells)
    untouched = [name for name, cells in groups.items() if all(cell.name in remaining for cell in cells)]
    rows: list[list[Cell]] = [
        [name, *(_seeds(cells, names) for names in (done, failed, remaining)), _why(cells, ended)]
        for name, cells in groups.items()
        if name not in untouched
    ]
    caption = "Seeds of each row. Not run yet is also what another process works on. The same command tries again."
    # Open where something failed, because the reasons are the first thing to read.
    sheet = DataTable(
        "rows", caption, ("row", "done", "failed", "not run yet", "why it failed"), rows, folds=not failed
    )
    blocks: list[Block] = [f"{summary}.", sheet]
    if untouched:
        blocks.append(f"Rows of which no seed was run yet: {listed(untouched)}.")
    limits = [f"{summary}: the report names them in Cells of the study."] if failed or remaining else []
    return PageSection("cells", "Cells of the study", blocks, limits)


def _seeds(cells: Sequence[Planned], names: Collection[str]) -> Cell:
    seeds = [str(cell.config.seed) for cell in cells if cell.name in names]
    return ", ".join(seeds) or "–", len(seeds)


def _why(cells: Sequence[Planned], ended: Outcome) -> str:
    """Return the reasons of failure, each once, with its seeds if there are several."""
    failed = [cell for cell in cells if cell.name in ended.failed]
    by_reason = lists_by_key((ended.failed[cell.name], cell.config.seed) for cell in failed)
    if len(by_reason) < 2:
        return "".join(by_reason)
    return "; ".join(f"{seeds_text(seeds)}: {why}" for why, seeds in by_reason.items())
