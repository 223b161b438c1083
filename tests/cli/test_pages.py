"""`fedloom help` shows pages that come with the package, and messages name only these."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from command_line import call
from fedloom.cli import shared
from fedloom.cli.app import app
from fedloom.cli.pages import SHIPPED, topics

ROOT = Path(__file__).parents[2]
TEXTS = [path for path in (ROOT / "src" / "fedloom").rglob("*") if path.suffix in (".py", ".toml", ".yaml", ".txt")]


def test_the_wheel_has_exactly_the_pages_of_the_list() -> None:
    """`tests/test_installation.py` builds it."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    packed = {name for name in build["force-include"] if name.startswith("docs/")}
    assert packed == {f"docs/{pattern.removesuffix('/*.md')}" for pattern in SHIPPED}
    assert all(target == f"fedloom/{name}" for name, target in build["force-include"].items())


def test_every_page_that_a_message_names_is_installed() -> None:
    named = {topic for path in TEXTS for topic in re.findall(r"`fedloom help ([\w/-]+)`", path.read_text())}
    assert {"tutorial", "own-model", "studies"} <= named
    assert named <= topics().keys()
    strings = {path.name: re.findall(r"[\"'{][^\n]*\bdocs/[\w/-]+\.md", path.read_text()) for path in TEXTS}
    assert {name: hits for name, hits in strings.items() if hits} == {}


def test_without_a_topic_all_pages_are_listed(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # without a terminal there are 80, and rows wrap
    code, out, err = call(capsys, "help")
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[3:] if line.strip()] == [*topics()]
    assert "Use your own data" in out


@pytest.mark.parametrize("topic", topics())
def test_every_page_can_be_read_in_a_terminal(capsys: Any, topic: str) -> None:
    code, out, err = call(capsys, "help", topic)
    assert (code, err) == (0, "")
    assert not re.search(r"^\{\{|^search:|\]\([^)]*\.md|\{ ?\.|<div", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 120


def test_code_and_the_pages_that_a_page_links_to_are_shown(capsys: Any) -> None:
    out = call(capsys, "help", "faq")[1]
    assert "fedloom init --from data.csv" in out
    named = re.search(r"Further topics of fedloom help: (.*)", " ".join(out.split()))
    assert named is not None
    assert {"install", "own-data", "deployment/tutorial"} <= set(named[1].split(", "))


@pytest.mark.parametrize("topic", ["operations", "docs/how-to/own-data.md", "How-To/own-data", "deployment/operations"])
def test_a_page_may_be_named_in_other_ways(capsys: Any, topic: str) -> None:
    assert call(capsys, "help", topic)[0] == 0


def test_the_name_of_a_page_comes_before_the_end_of_another(capsys: Any) -> None:
    assert "from a first comparison" in call(capsys, "help", "tutorial")[1]


def test_a_command_is_a_topic(capsys: Any) -> None:
    code, out, _ = call(capsys, "help", "compare")
    assert code == 0
    assert "Usage: fedloom compare" in out


@pytest.mark.parametrize(
    ("topic", "hint"),
    [
        ("own-modl", "did you mean 'own-model'?"),
        ("slurm", "headings of faq, clusters have it"),
        ("fedprox", "`fedloom methods fedprox` describes this method"),
        ("privacy.md/../../x", "`fedloom help` lists all"),
        ("", "`fedloom help` lists all"),
    ],
)
def test_an_unknown_topic_gives_the_nearest(capsys: Any, topic: str, hint: str) -> None:
    code, out, err = call(capsys, "help", topic)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert hint in err


def test_the_help_has_every_command_in_one_group(capsys: Any) -> None:
    grouped = [name for names in shared.TEXTS["groups"].values() for name in names]
    registered = [command.name for command in app.registered_commands]
    assert registered == grouped
    assert len({*grouped}) == len(grouped)
    out = call(capsys, "--help")[1]
    titles = re.findall(r"^╭─ (\w+) ─", out, re.MULTILINE)
    assert titles == ["Options", "Start", "Run", "Look", "Publish", "Deploy"]
    assert re.search(r"flower +Run a config", out.split("─ Deploy ─")[1])
