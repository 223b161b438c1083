"""The section of a report that shows the diagnoses of its runs, as `fedloom diagnose RUN` left them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text, parse_json, read_file
from fedloom.results.data_table import Cell, DataTable
from fedloom.results.page_sections import Block, PageSection

FILE = "diagnosis.json"
_COLUMNS = ("measure", "value", "random dealing (95 %)", "data that the server needs")
_CLIENT_COLUMNS = (
    *("client", "samples", "effective classes", "Hellinger distance to all samples", "group of similar clients"),
)


def diagnosis_sections(folders: Iterable[Path]) -> list[PageSection]:
    """Return a section for each different diagnosis among run folders; folders without one add nothing."""
    sections: dict[str, PageSection] = {}  # by content
    for path in (folder / FILE for folder in folders):
        if path.exists():
            try:
                facts = parse_json(read_file(path))
                sections.setdefault(json_text(facts), _section(facts, len(sections) + 1))
            # A damaged file may have any JSON in the place of an entry, and `_section` raises what it happens to meet.
            except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
                reason = "entries are missing" if isinstance(error, LookupError) else error
                advice = "delete it, or run `fedloom diagnose` again"
                raise RunFolderError(f"{path}: damaged ({reason}); {advice}") from None
    return list(sections.values())


def _section(facts: Mapping[str, Any], number: int) -> PageSection:
    figures: list[list[Cell]] = [list(map(str, row)) for row in facts["rows"]]
    group_sizes = Counter(facts["groups"])
    by_client: list[list[Cell]] = [
        [
            *(str(client), (f"{size}", float(size)), (f"{classes:.1f}", float(classes))),
            *((f"{distance:.3f}", float(distance)), str(group) if group_sizes[group] > 1 else "alone"),
        ]
        for client, size, classes, distance, group in zip(
            *(facts[name] for name in ("clients", "sizes", "effective_classes", "hellinger_to_pool", "groups")),
            strict=True,
        )
    ]
    sentences, notes = list(map(str, facts["sentences"])), [f"Not computed: {note}" for note in facts["notes"]]
    table = DataTable("skew", "How clients differ", _COLUMNS, figures)
    clients = DataTable("clients", "Each client", _CLIENT_COLUMNS, by_client, folds=True)
    blocks: list[Block] = [sentences, table, clients, *([notes] if notes else [])]
    name = "diagnosis" if number == 1 else f"diagnosis-{number}"
    return PageSection(name, f"How heterogeneous the data are: {facts['name']}", blocks)
