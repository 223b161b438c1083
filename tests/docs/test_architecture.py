"""The architecture page names files that exist, and every room of the source."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedloom"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_every_named_file_exists() -> None:
    names = set(re.findall(r"`([\w/]+\.(?:py|md))`", PAGE))
    files = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.*")}
    missing = [
        name
        for name in names
        if not any(f"/{file}".endswith(f"/{name}") for file in files) and not (ROOT / name).exists()
    ]
    assert missing == []


def test_every_room_is_in_the_house() -> None:
    rooms = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert rooms == set(re.findall(r"^\| `(\w+)/` \|", PAGE, flags=re.MULTILINE))
