"""The commands of the page on advice, as a reader types them."""

import shlex
from pathlib import Path

import pytest

from command_line import call
from typed_commands import commands_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "advise.md"
LINES = [command.text for command in commands_of(PAGE) if command.text.startswith("fedloom advise demo")]


def test_the_page_has_commands():
    assert len(LINES) == 5


@pytest.mark.parametrize(
    "line", [pytest.param(line, marks=[pytest.mark.matrix] if "--trial" in line else []) for line in LINES[1:]]
)
def test_a_typed_command_runs(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rounds = ["engine=serial", "--rounds", "3", "-q"] if "--trial" in line else []
    code, out, err = call(capsys, *shlex.split(line)[1:], *rounds)
    assert code == 0, err
    assert "fedavg" in out
