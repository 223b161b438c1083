"""Who holds what in a scenario, as a table and as a picture, for Python and notebooks."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedloom.core.console import recorded
from fedloom.results.report import save_holdings
from fedloom.results.report.holdings_table import print_holdings


@dataclass(frozen=True, slots=True, repr=False)
class Inspection:
    """Who holds what in a scenario. `print` shows the table, a notebook the table and the picture.

    facts: number of samples of each client and class, and the figures of skew, as scenario.json holds them.
    """

    facts: dict[str, Any]

    def save(self, path: Path | str) -> Path:
        """Write the picture to a .png, .svg or .pdf, and return its path. Raises `ConfigError` for another file."""
        return save_holdings(self.facts, Path(path))

    def __repr__(self) -> str:
        return recorded(lambda console: print_holdings(console, self.facts))["text/plain"]

    def _repr_html_(self) -> str:
        from fedloom.results.report.picture import holdings_picture

        table = recorded(lambda console: print_holdings(console, self.facts))["text/html"]
        picture = base64.b64encode(holdings_picture(self.facts, "png", dpi=110)).decode()
        attributes = 'style="max-width:100%" alt="clients by classes: who holds what"'
        return f'{table}<img {attributes} src="data:image/png;base64,{picture}">'
