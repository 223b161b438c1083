"""`keys.pyi` holds the keys that the models check, and the functions of the top level take them."""

import inspect
import shutil
import subprocess
import typing

import pytest

import fedloom as fl
from tests import typed_keys


def test_file_is_what_the_models_give():
    if shutil.which("ruff") is None:
        pytest.skip("ruff formats the file")
    formatted = subprocess.run(
        ["ruff", "format", "--stdin-filename", str(typed_keys.FILE), "-"],
        input=typed_keys.text(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert typed_keys.FILE.read_text() == formatted.stdout, "run: python -m tests.typed_keys; ruff format"


@pytest.mark.parametrize(
    ("function", "keys"),
    [
        (fl.run, "RunKeys"),
        (fl.compare, "CompareKeys"),
        (fl.scenario, "ScenarioKeys"),
        (fl.advise, "NeedsKeys"),
        (fl.Study, "CompareKeys"),
    ],
    ids=["run", "compare", "scenario", "advise", "Study"],
)
def test_functions_take_typed_keys(function, keys):
    for typed in typing.get_overloads(function) or [function]:
        *_, last = inspect.signature(typed).parameters.values()
        assert (last.kind, last.annotation) == (last.VAR_KEYWORD, f"Unpack[{keys}]")
