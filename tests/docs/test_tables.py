"""Every placeholder of a page names a table that exists, and every table has a place."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.tables import performance, tables

DOCS = Path(__file__).parents[2] / "docs"
PLACED = {
    name: page
    for page in sorted(DOCS.rglob("*.md"))
    for name in re.findall(r"^\{\{ table (.+) \}\}$", page.read_text(encoding="utf-8"), re.MULTILINE)
}


def test_every_table_has_a_place_and_every_place_a_table():
    assert PLACED.keys() == tables().keys()


@pytest.mark.parametrize("name", PLACED)
def test_a_table_is_whole(name):
    rows = [line for line in tables()[name].splitlines() if line.startswith("|")]
    assert rows or name == "apart-from-rounds"
    for header, rule in pairwise(rows):
        if re.fullmatch(r"[|:-]+", rule):
            assert header.count("|") == rule.count("|")


def test_the_picture_of_performance_is_drawn():
    assert performance.picture().startswith(b"\x89PNG")
