"""How far cells are, by their folder: looking writes nothing."""

from __future__ import annotations

from pathlib import Path

from fedloom.study.studies.place import Place


def test_looking_at_a_cell_creates_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert place.state("cell") == "left"
    assert not list(tmp_path.iterdir())


def test_a_cell_that_somebody_holds_is_under_way(tmp_path: Path) -> None:
    with Place(tmp_path).taken("trials/cell"):
        assert Place(tmp_path).state("trials/cell") == "under way"
    assert Place(tmp_path).state("trials/cell") == "left"
