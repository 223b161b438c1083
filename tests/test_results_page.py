"""The results page shows what was measured."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_of_all_pages_are_those_of_the_studies(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    results = loaded("results")
    for page, tables in results.tables().items():
        text = page.read_text(encoding="utf-8")
        assert tables
        assert results.with_tables(text, tables) == text


def test_the_tables_of_the_results_page_are_those_of_the_results_file():
    study = loaded("study")
    settings = json.loads(study.RESULTS.read_text(encoding="utf-8"))["settings"]
    page = study.PAGE.read_text(encoding="utf-8")
    assert len(settings) == 5
    assert study.with_tables(page, settings) == page
