"""The extras that messages and pages tell people to install are those of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_extra_that_is_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {name for path in texts for name in re.findall(r"fedloom\[([\w,-]+)\]", path.read_text(encoding="utf-8"))}
    assert {"hub", "flower-datasets"} <= named
    assert {one for name in named for one in name.split(",")} <= extras.keys()
