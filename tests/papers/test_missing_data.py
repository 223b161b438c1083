"""What is missing is named whole, also where columns have other parts of one source."""

from pathlib import Path

import pytest

from fedloom.papers.recipe import missing_sources
from fedloom.runs.studies.plan import parse_study


def test_columns_of_one_source_with_other_parts_are_all_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path))
    two = {"source": "domains", "partition": "domains", "clients": 2, "val": 0}
    settings = {
        "one": {"scenario": two | {"parts": ["usps", "rendered"]}},
        "smaller": {"scenario": two | {"parts": ["usps", "rendered"], "per_domain": 5}},
        "other": {"scenario": two | {"parts": ["rendered", "svhn"]}},
    }
    found = missing_sources(parse_study({"settings": settings}).cells)
    assert list(found) == ["domains"]
    assert [found["domains"].count(f"source {name}: no folder") for name in ("usps", "svhn")] == [1, 1]
