"""Every Python example of the docs runs: the blocks of a page in order, in one namespace, in an empty folder."""

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITHOUT: dict[str, str] = {}  # pages that need what may be absent, and the reason to skip them
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[str]:
    """The Python blocks of a page, on the lines where they stand there, so that tracebacks name the right line."""
    text = page.read_text(encoding="utf-8")
    return ["\n" * (text.count("\n", 0, found.start(1))) + found[1] for found in FENCE.finditer(text)]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch, tmp_path):
    """An empty folder, and registries that forget what a page has registered."""
    from fedloom.data import PARTITIONS
    from fedloom.methods import METHODS
    from fedloom.nets import MODELS

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    for registry in (METHODS, MODELS, PARTITIONS):
        registry.names()  # what is built in has come in
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_the_examples_of_a_page_run(page, monkeypatch):
    if name(page) in WITHOUT:
        pytest.skip(WITHOUT[name(page)])
    module = types.ModuleType("__page__")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses look their module up
    for block in blocks(page):
        exec(compile(block, str(page), "exec"), module.__dict__)


def test_there_are_examples():
    assert sum(bool(blocks(page)) for page in PAGES) >= 8
