"""Which data a study needs, and which of them are not on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from fedloom.core.errors import DataError
from fedloom.runs.studies.plan import Cell


def source_names(cells: Sequence[Cell]) -> list[str]:
    """Name the sources that the cells read, each once."""
    return list(dict.fromkeys(cell.config.scenario.source for cell in cells))


def missing_sources(cells: Sequence[Cell]) -> dict[str, str]:
    """Find the sources whose files are missing; by source, which files it needs where, and where they come from."""
    errors: dict[str, list[str]] = {}
    checked = set()
    for cell in cells:
        scenario = cell.config.scenario
        key = (scenario.source, str(scenario.model_extra))
        if key in checked:
            continue
        checked.add(key)
        source, _ = scenario.parts()
        try:
            source.files()
        except DataError as error:
            messages = errors.setdefault(scenario.source, [])
            messages += [] if str(error) in messages else [str(error)]
    return {name: "; ".join(messages) for name, messages in errors.items()}


def refuse_missing(cells: Sequence[Cell]) -> None:
    """Raise `DataError` if files are missing: which ones, in which layout, and where to get them."""
    missing = missing_sources(cells)
    if missing:
        raise DataError(f"{'; '.join(missing.values())}. Nothing was run; --only leaves columns out")
