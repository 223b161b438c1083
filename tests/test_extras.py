"""Extras of pyproject.toml are those that the code and the pages name, and no others."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
WORDS = re.compile(r"fedloom\[([\w,-]+)\]")
TOLD = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "pyproject.toml"]


def test_every_extra_that_is_named_exists() -> None:
    named = {word for path in TOLD for found in WORDS.findall(path.read_text("utf-8")) for word in found.split(",")}
    assert named <= set(EXTRAS)


def test_every_extra_is_asked_for_somewhere() -> None:
    asking = [*(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in asking)
    unused = [extra for extra in EXTRAS if extra not in ("dev", "docs", "notebooks") and f'"{extra}"' not in code]
    assert [extra for extra in unused if f"fedloom[{extra}]" not in code] == []
