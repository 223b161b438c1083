"""Pages keep their sentences short, and name only objects that exist."""

import pkgutil
import re
from pathlib import Path

import pytest

from sentences import LONGEST, sentences

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_sentence_is_a_riddle(page):
    long = [words for words in sentences(page.read_text(encoding="utf-8")) if len(words.split()) > LONGEST]
    assert not long


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "api").glob("*.md")), ids=lambda page: page.stem)
def test_documented_objects_exist(page):
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert pkgutil.resolve_name(name)
