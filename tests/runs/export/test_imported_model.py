"""Models by the name of their module or file, as commands get them."""

import sys
from pathlib import Path

import pytest
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.runs.export.evaluation import imported_model

TEXT = """
from torch import nn

class Nets:
    @staticmethod
    def small():
        return nn.Linear(2, 3)

ready = nn.Linear(4, 5)
number = 3
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets_of_a_user.py").write_text(TEXT)
    (tmp_path / "broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets_of_a_user", raising=False)


@pytest.mark.parametrize("origin", ["nets_of_a_user.py", "nets_of_a_user"])
def test_functions_and_modules_are_imported(origin: str) -> None:
    before = list(sys.path)
    make = imported_model(f"{origin}:Nets.small")
    assert not isinstance(make, nn.Module)
    assert isinstance(make(), nn.Linear)
    assert isinstance(imported_model(f"{origin}:ready"), nn.Linear)
    assert sys.path == before


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("nets_of_a_user.py", "need FILE.py:NAME or MODULE:NAME"),
        (":make", "need FILE.py:NAME or MODULE:NAME"),
        ("none.py:make", "none.py: no such file"),
        ("none:make", "none: cannot be imported .ModuleNotFoundError"),
        ("broken.py:make", "broken.py: cannot be imported .ModuleNotFoundError: No module named"),
        ("nets_of_a_user.py:make", "nets_of_a_user.py has no make"),
        ("nets_of_a_user.py:number", "a int; need a torch.nn.Module"),
    ],
)
def test_what_cannot_be_imported_is_one_line(reference: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        imported_model(reference)
    assert "\n" not in str(caught.value)


def test_a_file_may_have_dataclasses_and_import_a_file_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "layers_of_a_user.py").write_text("from torch import nn\nlayer = nn.Linear(2, 3)\n")
    (folder / "typed_of_a_user.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom layers_of_a_user import layer\n"
        "@dataclass\nclass Size:\n    width: int = 8\n"
    )
    before, modules = list(sys.path), set(sys.modules)
    try:
        assert isinstance(imported_model(f"{folder / 'typed_of_a_user.py'}:layer"), nn.Linear)
        assert sys.path == before
    finally:
        for name in {"layers_of_a_user", "typed_of_a_user"} - modules:
            sys.modules.pop(name, None)


def test_a_file_that_is_called_as_a_package_does_not_replace_it(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("make = dict\n")
    package = sys.modules["torch"]
    try:
        assert imported_model("torch.py:make") is dict
        assert sys.modules["torch"] is package
    finally:
        sys.modules.pop("_fedloom_model_torch", None)
