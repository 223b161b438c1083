"""Which data a study needs, and which of them are not here."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.errors import DataError
from fedloom.study.studies.plan import Cell


def missing(cells: Sequence[Cell]) -> dict[str, str]:
    """Sources of which files are missing, each with what is expected where, and where it comes from."""
    found: dict[str, list[str]] = {}
    seen = set()
    for cell in cells:
        scenario = cell.config.scenario
        key = (scenario.source, str(scenario.model_extra))
        if key in seen:
            continue
        seen.add(key)
        source, _ = scenario.parts()
        try:
            source.files()
        except DataError as error:
            told = found.setdefault(scenario.source, [])
            told += [] if str(error) in told else [str(error)]
    return {name: "; ".join(told) for name, told in found.items()}


def sources(cells: Sequence[Cell]) -> list[str]:
    """The sources that the cells read, each once."""
    return list(dict.fromkeys(cell.config.scenario.source for cell in cells))


def refuse_missing(cells: Sequence[Cell]) -> None:
    """Raises `DataError` that names what is missing, in which layout, and where to get it."""
    found = missing(cells)
    if found:
        raise DataError(f"{'; '.join(found.values())}. Nothing was run; --only leaves columns out")
