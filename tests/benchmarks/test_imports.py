"""Benchmarks run by hand, so that a name which has left the library would go unnoticed until then."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
FILES = sorted(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_what_a_benchmark_imports_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fedloom":
            module = importlib.import_module(str(node.module))
            lost = [a.name for a in node.names if not hasattr(module, a.name) and not _is_module(node.module, a.name)]
            assert not lost, f"{node.module} has no {', '.join(lost)}"


def _is_module(package: str | None, name: str) -> bool:
    return importlib.util.find_spec(f"{package}.{name}") is not None


def test_there_are_benchmarks() -> None:
    assert len(FILES) > 10
