"""Who holds what as text and in notebooks: clients by classes in shades, with the skew figures."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedloom.core.console import fits, print_table, print_template, recorded
from fedloom.data.leak import leak_sentences
from fedloom.data.scenario import client_samples
from fedloom.results.report import save_holdings

_SHADES = " ·░▒▓█"
_SEPARATE_CLASSES, _MAX_CELLS = 12, 50  # classes with a column each; cells for more of them
_SHORTEST_NAME = 3  # characters of a class name, as many as its shades
_OTHER_COLUMNS = 24  # columns of the terminal left of and right of the cells


def print_holdings(console: Console, picture: Mapping[str, Any], shown_clients: int = 20) -> None:
    """Print clients x classes of a `picture` (scenario.json) as shades to the `console`, at most `shown_clients`."""
    longest = max((len(str(label)) for label in picture["classes"]), default=0)
    for name_length in range(max(longest, _SHORTEST_NAME), _SHORTEST_NAME - 1, -1):
        table = _holdings_table(picture, shown_clients, _SEPARATE_CLASSES, name_length=name_length)
        if fits(console, table, wraps=False):
            break
    if not fits(console, table, wraps=False):
        table = _holdings_table(picture, shown_clients, 0, console.width - _OTHER_COLUMNS)
    print_table(console, table, wraps=True)
    values = {"picture": picture, "hidden": picture["clients"] - shown_clients, "leak_sentences": leak_sentences}
    print_template(console, "fedloom.results", "holdings.txt", wraps=True, **values)


def _holdings_table(
    picture: Mapping[str, Any],
    shown_clients: int,
    apart_up_to: int,
    cells: int = _MAX_CELLS,
    name_length: int = _SHORTEST_NAME,
) -> Table:
    """Make a row for each client; more than `apart_up_to` classes share one column of at most `cells` cells."""
    counts: list[list[int]] = picture["class_counts"]
    samples, largest = client_samples(picture), max((n for row in counts for n in row), default=0) or 1
    title = f"{escape(picture['name'])}: who holds what"
    table = Table(box=SIMPLE_HEAD, header_style="bold", title=title, title_justify="left")
    table.add_column("client", justify="right", no_wrap=True)
    classes = [str(label) for label in picture["classes"]]
    apart = len(classes) <= apart_up_to
    if apart:
        for label in classes:
            table.add_column(escape(label[:name_length]), justify="center", no_wrap=True)
    else:
        merged = -(-len(classes) // max(1, min(cells, _MAX_CELLS)))
        counts = [[max(row[c : c + merged]) for c in range(0, len(row), merged)] for row in counts]
        many = f"{len(classes)} classes" + (f", {merged} a cell" if merged > 1 else "")
        table.add_column(many, min_width=len(counts[0]), no_wrap=True)
    if picture["domains"]:
        table.add_column("domain")
    table.add_column("samples", justify="right", no_wrap=True)
    for client, row in enumerate(counts[:shown_clients]):
        shades = [_SHADES[0] if n == 0 else _SHADES[1 + int(4 * n / largest)] for n in row]
        shown = [Text(shade * 3) for shade in shades] if apart else [Text("".join(shades))]
        domains = zip(picture["domains"], picture["domain_counts"][client] if picture["domains"] else (), strict=True)
        domain = [Text(", ".join(name for name, held in domains if held))] if picture["domains"] else []
        table.add_row(str(client), *shown, *domain, str(samples[client]))
    return table


@dataclass(frozen=True, slots=True, repr=False)
class Inspection:
    """Who holds what in a scenario. `print` shows the table, a notebook the table and the picture.

    facts: number of samples of each client and class, and the figures of skew, as scenario.json holds them."""

    facts: dict[str, Any]

    def save(self, path: Path | str) -> Path:
        """Write the picture to a .png, .svg or .pdf, and return its path. Raises `ConfigError` for another file."""
        return save_holdings(self.facts, Path(path))

    def __repr__(self) -> str:
        return recorded(lambda console: print_holdings(console, self.facts))["text/plain"]

    def _repr_html_(self) -> str:
        from fedloom.results.report.charts import holdings_picture  # brings matplotlib

        table = recorded(lambda console: print_holdings(console, self.facts))["text/html"]
        picture = base64.b64encode(holdings_picture(self.facts, "png", dpi=110)).decode()
        attributes = 'style="max-width:100%" alt="clients by classes: who holds what"'
        return f'{table}<img {attributes} src="data:image/png;base64,{picture}">'
