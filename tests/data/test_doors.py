"""The doors of data as one table: what is read, what is said about it once, and what is refused in one line."""

import importlib
from collections.abc import Callable
from typing import Any

import pytest

from fedloom.core.errors import FedloomError
from fedloom.data import SOURCES
from fedloom.data.sources.source import Splits, configure_source

KINDS = (
    "tables",
    "tables_lines",
    "tables_numbers",
    "tables_labels",
    "pictures",
    "folders",
    "arrays",
    "texts",
    "listed",
)
DOORS = [door for kind in KINDS for door in importlib.import_module(f"doors.{kind}").DOORS]

FACTS: dict[str, Callable[[Splits], Any]] = {
    "train": lambda splits: len(splits.train),
    "test": lambda splits: len(splits.test),
    "classes": lambda splits: splits.train.classes,
    "shape": lambda splits: splits.train.input_shape,
    "features": lambda splits: splits.train.features,
    "owners": lambda splits: splits.train.domains,
    "levels": lambda splits: len(splits.train.x.unique()),
    "range": lambda splits: (float(splits.train.x.min()), float(splits.train.x.max())),
}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
def test_door(door, tmp_path):
    keys = door.write(tmp_path)
    kind = SOURCES.get(keys.pop("source"))
    if door.refused is not None:
        with pytest.raises(FedloomError) as error:
            configure_source(kind, **keys).load()
        assert "\n" not in str(error.value)
        assert not [words for words in door.refused if words not in str(error.value)], str(error.value)
        return
    splits = configure_source(kind, **keys).load()
    assert {name: FACTS[name](splits) for name in door.reads} == dict(door.reads)
    assert len(splits.notes) == len(door.notes), splits.notes
    for note, words in zip(splits.notes, door.notes, strict=True):
        assert not [word for word in words if word not in note], note


def test_names_are_different():
    assert len({door.name for door in DOORS}) == len(DOORS)
