"""The list of mistakes fits the source. `run.py` puts them in; that takes minutes and is done by hand."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def _mutations() -> Any:
    spec = importlib.util.spec_from_file_location("mutations", HERE / "mutations.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTATIONS


MUTATIONS = _mutations()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.mistake)
def test_a_mistake_has_one_place_and_tests(mutation: Any) -> None:
    source = (ROOT / "src" / "fedloom" / mutation.file).read_text(encoding="utf-8")
    assert source.count(mutation.old) == 1
    assert mutation.old != mutation.new
    assert all((ROOT / "tests" / test).is_file() for test in mutation.tests)


def test_mistakes_are_told_apart() -> None:
    names = [mutation.mistake for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 25
