"""Models by the name of their module or file, as commands get them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.export.imported_model import imported_model

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
