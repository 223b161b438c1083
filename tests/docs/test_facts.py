"""The tables of methods in the documentation are those of the code."""

import importlib.util
from pathlib import Path

from fedloom.methods import METHODS

ROOT = Path(__file__).parents[2]


def facts():
    spec = importlib.util.spec_from_file_location("facts", ROOT / "docs" / "facts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_say_what_the_code_says():
    stale = [path.name for path, text in facts().pages().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make facts`"


def test_the_package_lists_what_the_code_has():
    """Plug-ins of this environment would be in the lists of the code, and not in those of the package."""
    stale = [path.name for path, text in facts().lists().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make facts`"


def test_every_method_of_this_house_has_a_page_with_its_facts():
    pages = {path.stem for path in facts().pages()} - {"README"}
    assert pages == {name for name, kind in METHODS if kind.__module__.startswith("fedloom.")}
