"""The tables of methods on the site, and the lists of the package, say what the code has."""

import importlib.util
from pathlib import Path

from docs import method_pages
from fedloom.methods import METHODS

ROOT = Path(__file__).parents[2]


def test_the_package_lists_what_the_code_has():
    """Plug-ins of this environment would be in the lists of the code, and not in those of the package."""
    spec = importlib.util.spec_from_file_location("facts", ROOT / "docs" / "facts.py")
    facts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(facts)
    stale = [path.name for path, text in facts.lists().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make facts`"


def test_every_method_has_a_page_and_a_line_in_the_overview():
    own = {name for name, kind in METHODS if kind.__module__.startswith("fedloom.")}
    assert method_pages.documented().keys() == own
    overview = method_pages.overview()
    assert all(f"({name}.md) |" in overview for name in own)


def test_facts_of_a_method_are_those_of_its_code():
    facts = method_pages.facts(method_pages.documented()["fedavg"])
    assert "| source | McMahan" in facts
    assert "| yields | global |" in facts
    assert "| traffic | down " in facts
