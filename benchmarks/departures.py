"""Tables of docs/methods/departures.md: where released code departs from its paper, and what each departure does.

The study's rows are the paper's preset, that preset with one option of the released code, and the presets as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cells import BESIDE, FIVE, against, option_text, shown
from fedloom.methods import METHODS

STUDY = Path(__file__).parent / "studies" / "departures.yaml"
Cells = Mapping[str, Mapping[str, Any]]


def departures(method: str) -> dict[str, tuple[Any, Any]]:
    """By option, what the paper has and what the released code has, where they differ."""
    kind = METHODS.get(method)
    printed = kind.Options(**kind.presets["paper"]).model_dump()
    released = kind.Options(**kind.presets["authors"]).model_dump()
    return {option: (printed[option], released[option]) for option in printed if printed[option] != released[option]}


def departure_tables(cells: Cells) -> dict[str, str]:
    """By method, a row for each departure, and for the presets as a whole; the methods to compare with."""
    return {f"departures-{name}": _table(name, cells) for name in FIVE} | {"departures-others": _others(cells)}


def _table(method: str, cells: Cells) -> str:
    lines = ["| departure | what it is about | accuracy % | against paper |", "|---|---|---|---|"]
    descriptions = METHODS.get(method).Options.model_fields
    lines.append(f"| `paper` | as printed | {_accuracy(method, 'paper', cells)} | |")
    for option, (printed, released) in departures(method).items():
        label = option.replace("_", "-")
        lines.append(
            f"| `{option}`: {option_text(printed)} → {option_text(released)} | {descriptions[option].description} |"
            f" {_accuracy(method, label, cells)} | {_against(method, label, cells)} |"
        )
    for preset, words in (("authors", "all departures at once"), ("sound", "the default")):
        if preset == "authors" or METHODS.get(method).presets[preset]:
            lines.append(
                f"| `{preset}` | {words} | {_accuracy(method, preset, cells)} | {_against(method, preset, cells)} |"
            )
    return "\n".join(lines) + "\n"


def _others(cells: Cells) -> str:
    lines = ["| method | accuracy % |", "|---|---|"]
    for label, title in BESIDE.items():
        lines.append(f"| {title} | {shown(cells.get(f'/{label}'))} |")
    return "\n".join(lines) + "\n"


def _accuracy(method: str, label: str, cells: Cells) -> str:
    return shown(cells.get(f"/{method}-{label}"))


def _against(method: str, label: str, cells: Cells) -> str:
    """Mean difference to the paper's preset over the seeds, and on how many seeds it is ahead."""
    cell, paper = cells.get(f"/{method}-{label}"), cells.get(f"/{method}-paper")
    if cell is None or paper is None:
        return "–"
    return against(cell["accuracies"], paper["accuracies"])
