"""Pages whose tables come from committed measurements show what was measured."""

import json

import hostile_page
import performance_page
import privacy_page
from marked_tables import with_tables
from support import FEDERATED


def test_the_performance_page_and_the_notebook_show_the_committed_measurements():
    measured = json.loads(performance_page.RESULTS.read_text(encoding="utf-8"))
    for page, tables in performance_page.tables(measured).items():
        text = page.read_text(encoding="utf-8")
        assert with_tables(text, tables) == text


def test_the_page_of_hostile_nodes_shows_the_committed_measurements():
    text = hostile_page.PAGE.read_text(encoding="utf-8")
    assert with_tables(text, hostile_page.tables()) == text
    assert all(f"| {method} |" in text for method in FEDERATED)


def test_the_page_of_measured_leaks_shows_the_committed_measurements():
    text = privacy_page.PAGE.read_text(encoding="utf-8")
    assert with_tables(text, privacy_page.tables()) == text
    assert all(f"\n| {method} |" in text for method in FEDERATED)
