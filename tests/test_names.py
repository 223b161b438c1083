"""Names in the source say what they stand for, and each names one thing."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import fedloom

PACKAGE = Path(fedloom.__file__).parent
MEANINGLESS = re.compile(
    "made|found|told|said|one|own|each|here|there|whose|other|both|left|seen|known|given|asked|kept|wanted|taken|item|"
    "thing|stuff"
)
LARGEST_SHARE = 0.007  # of variables and arguments


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each file of the package, by its path below it."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each argument and each assigned variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def without_docstring(tree: ast.Module) -> Iterator[str]:
    """Yield the public functions and classes of a module that have no docstring, there or in `published.toml`."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            decorators = [ast.unparse(decorator) for decorator in getattr(node, "decorator_list", [])]
            elsewhere = any(name.endswith("overload") or "published_set(" in name for name in decorators)
            if ast.get_docstring(node) is None and not elsewhere:
                yield node.name


def riddles(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring that starts with "What"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            if text.startswith("What "):
                yield node.body[0].lineno, text.splitlines()[0]


def test_names_mean_something():
    stored = [(file, line, name) for file, tree in trees().items() for line, name in names(tree)]
    meaningless = [f"{file}:{line} {name}" for file, line, name in stored if MEANINGLESS.fullmatch(name)]
    share = len(meaningless) / len(stored)
    assert share <= LARGEST_SHARE, f"{share:.2%} of {len(stored)} names say nothing:\n" + "\n".join(meaningless)


def test_each_class_has_its_own_name():
    """The exception are the options of methods, which are all called Options."""
    files: dict[str, list[str]] = {}
    for file, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name != "Options":
                files.setdefault(node.name, []).append(file)
    assert not {name: paths for name, paths in files.items() if len(paths) > 1}


def test_at_most_two_files_share_a_name():
    counted = Counter(Path(file).name for file in trees())
    assert not {name: count for name, count in counted.items() if count > 2 and name != "__init__.py"}


@pytest.mark.parametrize("room", sorted({file.split("/")[0] for file in trees()}))
def test_docstrings_stand_alone(room):
    in_room = {file: tree for file, tree in trees().items() if file.split("/")[0] == room}
    opaque = [f"{file}:{line} {text}" for file, tree in in_room.items() for line, text in riddles(tree)]
    missing = [f"{file} {name}: no docstring" for file, tree in in_room.items() for name in without_docstring(tree)]
    assert not opaque + missing, "\n".join(opaque + missing)


def test_the_checks_can_fail():
    tree = ast.parse('def f(own):\n    """What f does."""\n\n\nclass Bare:\n    found = 1\n')
    assert [name for _, name in names(tree)] == ["own", "found"]
    assert list(riddles(tree)) == [(2, "What f does.")]
    assert list(without_docstring(tree)) == ["Bare"]
