"""The results page shows what was measured."""

import importlib.util
import json
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_tables_of_the_results_page_are_those_of_the_results_file():
    spec = importlib.util.spec_from_file_location("study", ROOT / "benchmarks" / "study.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    settings = json.loads(study.RESULTS.read_text(encoding="utf-8"))["settings"]
    page = study.PAGE.read_text(encoding="utf-8")
    assert len(settings) == 5
    assert study.with_tables(page, settings) == page
