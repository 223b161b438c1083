"""The source of scenarios that were made in Python."""

from __future__ import annotations

from pydantic import Field

from fedloom.core.errors import DataError
from fedloom.data.sources.source import Source, Splits, source


@source("given")
class InMemory(Source):
    """A `Scenario` made in Python and passed to `fedloom.run`. It cannot be read again from its config."""

    digest: str = Field(
        description="Fingerprint of the scenario; a run folder can only be resumed with the same data.",
    )

    def load(self) -> Splits:
        raise DataError(
            "source given: this run used a scenario made in Python; pass the same scenario to fedloom.run to resume it"
        )
