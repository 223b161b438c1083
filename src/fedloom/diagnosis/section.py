"""The section of a report that shows the diagnoses of its runs, as `fedloom diagnose RUN` left them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedloom.core.errors import RunFolderError
from fedloom.core.files import parse_json, read_file
from fedloom.results.page_sections import Cell, PageSection, SectionTable

FILE = "diagnosis.json"
_COLUMNS = ("figure", "value", "random dealing (95 %)", "what the server needs")
_TEXTS = ("name", "rows", "sentences", "notes", "clients", "groups", "hellinger_to_pool", "sizes", "effective_classes")


def diagnosis_sections(folders: Iterable[Path]) -> list[PageSection]:
    """Return a section for each different diagnosis among run folders; folders without one add nothing.

    Raises `RunFolderError` for a damaged file.
    """
    by_content: dict[str, tuple[Path, Mapping[str, Any]]] = {}
    for folder in folders:
        path = folder / FILE
        if path.exists():
            by_content.setdefault(read_file(path).decode(errors="replace"), (path, _read(path)))
    return [_section(path, facts, number) for number, (path, facts) in enumerate(by_content.values(), 1)]


def _read(path: Path) -> Mapping[str, Any]:
    try:
        facts = parse_json(read_file(path))
        if not isinstance(facts, dict) or not all(name in facts for name in _TEXTS):
            raise ValueError("entries are missing")
    except ValueError as error:
        raise RunFolderError(f"{path}: damaged ({error}); delete it, or run `fedloom diagnose` again") from None
    return facts


def _section(path: Path, facts: Mapping[str, Any], number: int) -> PageSection:
    try:
        figures: list[list[Cell]] = [list(map(str, row)) for row in facts["rows"]]
        sizes_of_groups = Counter(facts["groups"])
        clients: list[list[Cell]] = [
            [
                str(client),
                (f"{size}", float(size)),
                (f"{classes:.1f}", float(classes)),
                (f"{distance:.3f}", float(distance)),
                str(group) if sizes_of_groups[group] > 1 else "alone",
            ]
            for client, size, classes, distance, group in zip(
                facts["clients"],
                facts["sizes"],
                facts["effective_classes"],
                facts["hellinger_to_pool"],
                facts["groups"],
                strict=True,
            )
        ]
    except (TypeError, ValueError) as error:
        raise RunFolderError(f"{path}: damaged ({error}); delete it, or run `fedloom diagnose` again") from None
    table = SectionTable("skew", "How clients differ", _COLUMNS, figures)
    columns = ("client", "samples", "effective classes", "Hellinger distance to all samples", "group of alike clients")
    by_client = SectionTable("clients", "Each client", columns, clients, folds=True)
    blocks: list[str | SectionTable | list[str]] = [list(map(str, facts["sentences"])), table, by_client]
    if facts["notes"]:
        blocks.append([f"Not computed: {note}" for note in facts["notes"]])
    name = "diagnosis" if number == 1 else f"diagnosis-{number}"
    return PageSection(name, f"How heterogeneous the data are: {facts['name']}", blocks)
