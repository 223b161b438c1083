"""The section of a report that shows the diagnoses of its runs, as `fedloom diagnose RUN` left them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedloom.core.errors import RunFolderError
from fedloom.core.files import json_text, parse_json, read_file
from fedloom.results.data_table import Cell, DataTable
from fedloom.results.page_sections import Block, PageSection, SectionPicture

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
    """Return the section of a diagnosis. Raises many errors for damaged entries."""
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
    blocks: list[Block] = [sentences, *_maps(facts), table, clients, *([notes] if notes else [])]
    name = "diagnosis" if number == 1 else f"diagnosis-{number}"
    return PageSection(name, f"How heterogeneous the data are: {facts['name']}", blocks)


def _maps(facts: Mapping[str, Any]) -> list[Block]:
    """Return the maps of the clients, by their labels and by their features."""
    by_client = {
        client: (group, size)
        for client, group, size in zip(facts["clients"], facts["groups"], facts["sizes"], strict=True)
    }
    groups = Counter(facts["groups"]).values()
    alone = sum(size == 1 for size in groups)
    labels = SectionPicture(
        "map",
        "client map",
        _map_values(by_client, facts["clients"], facts["places"], "Hellinger distance"),
        "Clients by their labels",
        "Clients with similar label mixes are close together. Area: samples. Colour: groups of similar clients.",
        f"{len(by_client)} clients in the plane, in {len(groups) - alone} groups, and {alone} outside any group.",
    )
    maps: list[Block] = [labels] if len(by_client) > 1 else []
    for when, features in facts["features"].items():
        clients = [client for client in features["clients"] if client in by_client]
        if features.get("places") is None or not 1 < len(clients) == len(features["clients"]):
            continue
        maps.append(
            SectionPicture(
                f"feature-map-{when}",
                "client map",
                _map_values(by_client, clients, features["places"], "distance of class means"),
                f"Clients by their features ({when} net)",
                "Clients with similar features of the same class, in standard deviations within a class, are close "
                "together. Area and colour as above.",
                f"{len(clients)} clients in the plane.",
            )
        )
    return maps


def _map_values(
    by_client: Mapping[Any, tuple[Any, Any]], clients: Sequence[Any], places: Sequence[Any], unit: str
) -> Mapping[str, Any]:
    return {
        "clients": list(clients),
        "groups": [by_client[client][0] for client in clients],
        "sizes": [by_client[client][1] for client in clients],
        "places": [(float(x), float(y)) for _, (x, y) in zip(clients, places, strict=True)],
        "unit": unit,
    }
