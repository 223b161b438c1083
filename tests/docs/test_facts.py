"""The lists of the package say what the code has."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_package_lists_what_the_code_has():
    """Plug-ins of this environment would be in the lists of the code, and not in those of the package."""
    spec = importlib.util.spec_from_file_location("facts", ROOT / "docs" / "facts.py")
    facts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(facts)
    stale = [path.name for path, text in facts.lists().items() if path.read_text(encoding="utf-8") != text]
    assert not stale, "run `make facts`"
