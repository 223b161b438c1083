"""Where released code departs from its paper, and what each departure does.

The study's rows are the paper's preset, that preset with one option of the released code, and the presets as a whole.
"""

from pathlib import Path
from typing import Any

from benchmarks.cells import Cells, read_cells
from benchmarks.tables.words import FIVE, PLAIN, against, markdown, option_text, shown
from fedloom.methods import METHODS

STUDY = Path(__file__).parents[1] / "studies" / "departures.yaml"


def departures(method: str) -> dict[str, tuple[Any, Any]]:
    """Return the values of the paper and of the released code, by option, where they differ."""
    kind = METHODS.get(method)
    printed = kind.Options(**kind.presets["paper"]).model_dump()
    released = kind.Options(**kind.presets["authors"]).model_dump()
    return {option: (printed[option], released[option]) for option in printed if printed[option] != released[option]}


def tables() -> dict[str, str]:
    """Return the tables by name."""
    return departure_tables(read_cells("departures"))


def departure_tables(cells: Cells) -> dict[str, str]:
    """Return a row per departure and per preset, by method; and the plain methods."""
    others = markdown(
        ("method", "accuracy %"), [[title, shown(cells.get(f"/{name}"))] for name, title in PLAIN.items()]
    )
    return {f"departures-{name}": _departures(name, cells) for name in FIVE} | {"departures-others": others}


def _departures(method: str, cells: Cells) -> str:
    fields = METHODS.get(method).Options.model_fields
    rows = [["`paper`", "as printed", shown(cells.get(f"/{method}-paper")), ""]]
    for option, (printed, released) in departures(method).items():
        change = f"`{option}`: {option_text(printed)} → {option_text(released)}"
        rows.append([change, str(fields[option].description), *_measured(method, option.replace("_", "-"), cells)])
    for preset, words in (("authors", "all departures at once"), ("sound", "the default")):
        if preset == "authors" or METHODS.get(method).presets[preset]:
            rows.append([f"`{preset}`", words, *_measured(method, preset, cells)])
    return markdown(("departure", "description", "accuracy %", "against paper"), rows)


def _measured(method: str, label: str, cells: Cells) -> tuple[str, str]:
    """The accuracy of a row, and its mean difference from the paper's preset over equal seeds."""
    cell, paper = cells.get(f"/{method}-{label}"), cells.get(f"/{method}-paper")
    if cell is None or paper is None:
        return shown(cell), "–"
    return shown(cell), against(cell["accuracies"], paper["accuracies"])
