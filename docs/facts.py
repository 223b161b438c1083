"""Tables of methods in the documentation, written from what the code says: `make facts`.

docs/methods/README.md has the list by needs, from docs/method_needs.py, and one line of formulas for each method;
docs/methods/NAME.md has a table of NAME's facts below its title. The lists that `fedloom methods`, `datasets` and
`models` show are written into the package. A test holds all of them to the code (`tests/docs/test_facts.py`).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from fedloom.cli.cached_lists import packaged_text
from fedloom.cli.catalogue import listed_datasets, listed_models
from fedloom.cli.methods import listed_methods
from fedloom.methods.catalogue.descriptions import Entry, entries
from fedloom.methods.contract.citation import SYMBOLS, formula

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "benchmarks")]
from method_needs import needs_table

import advice_rules

PAGES = Path(__file__).parent / "methods"
LISTS = Path(__file__).parents[1] / "src" / "fedloom" / "cli" / "lists"
_BEGIN, _END = "<!-- facts: written by `make facts` -->", "<!-- end of facts -->"
_NEEDS = "<!-- needs: written by `make facts` -->", "<!-- end of needs -->"
_COLUMNS = ("idea", "yields", "nets", "down", "up", "client keeps", "compared in")


def pages() -> dict[Path, str]:
    """Every page with facts, as it should be."""
    every = [one for one in entries() if (PAGES / f"{one.name}.md").exists()]
    overview_page = PAGES / "README.md"
    begin, end = _NEEDS
    before, _, rest = _with(overview_page, overview(every)).partition(begin)
    after = rest.partition(end)[2]
    made = {overview_page: f"{before}{begin}\n{needs_table(every)}\n{end}{after}"}
    return made | {PAGES / f"{one.name}.md": _with(PAGES / f"{one.name}.md", facts(one)) for one in every}


def lists() -> dict[Path, str]:
    """Every list of the package, as it should be."""
    made = {"methods": listed_methods(), "datasets": listed_datasets(), "models": listed_models()}
    return {LISTS / f"{noun}.json": packaged_text(entries) for noun, (entries, _) in made.items()}


def overview(every: list[Entry]) -> str:
    """One line for each method, and what the formulas count."""
    lines = ["| method | " + " | ".join(_COLUMNS) + " |", "|---" * (len(_COLUMNS) + 1) + "|"]
    for one in every:
        told = one.facts()
        cells = [f"[{one.title}]({one.name}.md)", *(told[column] for column in _COLUMNS)]
        lines.append("| " + " | ".join(map(_cell, cells)) + " |")
    symbols = ["| symbol | counts |", "|---|---|", *(f"| {name} | {_cell(text)} |" for name, text in SYMBOLS.items())]
    return "\n".join([*lines, "", *symbols])


def facts(one: Entry) -> str:
    """The table of one method."""
    citation, told = one.citation, one.facts()
    rows = []
    if citation and citation.source:
        rows.append(("source", _linked(citation.source)))
    if citation and citation.code:
        rows.append(("released code", citation.code))
    if citation:
        rows.append(("traffic", f"down {formula(citation.down)}; up {formula(citation.up)}"))
        rows.append(("client keeps", formula(citation.state)))
    rows += [(key, told[key]) for key in ("yields", "nets", "compared in", "secure sum", "wrappers") if told[key]]
    if one.abilities.unstackable:
        rows.append(("stacks", f"no: {one.abilities.unstackable}"))
    return "\n".join(["| fact | |", "|---|---|", *(f"| {key} | {_cell(value)} |" for key, value in rows)])


def _with(page: Path, table: str) -> str:
    """The page with this table between the marks; below the title where it has none yet."""
    text = page.read_text(encoding="utf-8")
    block = f"{_BEGIN}\n{table}\n{_END}"
    if _BEGIN in text:
        return re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: block, text, count=1, flags=re.DOTALL)
    title, rest = text.split("\n", 1)
    return f"{title}\n\n{block}\n{rest}"


def _linked(source: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", source)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    for path, text in {**pages(), **lists()}.items():
        path.write_text(text, encoding="utf-8")
    advice_rules.main([])  # the advice knows methods by their traits on these pages
