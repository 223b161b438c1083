"""The house of docs/architecture.md: a file imports only from floors below its own, and from its own folder."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedloom"
FLOORS = {
    "_version": 0,
    "core": 1,
    "data": 2,
    "nets": 2,
    "methods": 3,
    "evaluation": 4,
    "engine": 5,
    "study": 6,
    "report": 7,
    "api": 7,
    "terminal": 8,
    "cli": 8,
    "__main__": 9,
}
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def imported(path: Path) -> set[str]:
    """Second words of all `fedloom.<word>` imports in a file, lazy ones included."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedloom"):
            parts = node.module.split(".")
            words |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            words |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("fedloom.")}
    return words


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for word in imported(path) - {own}:
        assert FLOORS[word] < FLOORS[own] or {word, own} == {"terminal", "cli"}, f"{own} must not import {word}"


def test_every_place_has_a_floor() -> None:
    places = {p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in FILES}
    assert places == set(FLOORS)


def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("statement", ["import fedloom", "import fedloom.cli", "import fedloom.report"])
def test_importing_is_light(statement: str) -> None:
    loaded = modules_after(statement)
    assert not loaded & {"torch", "matplotlib", "sklearn", "pyarrow", "numpy"}


def test_running_needs_no_plots_and_no_scikit_learn() -> None:
    loaded = modules_after(
        "from fedloom.study.run import run; from fedloom.data import SOURCES; SOURCES.get('digits')().load()"
    )
    assert not loaded & {"matplotlib", "sklearn", "pyarrow", "torchvision"}


def test_no_file_is_too_long() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
