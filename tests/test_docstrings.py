"""Docstrings of public functions name the arguments, and a list of arguments is complete and true."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

import fedloom

PACKAGE = Path(fedloom.__file__).parent
MANY = 3  # arguments, from which on half of them must be named
ENTRY = re.compile(r" {4}(\w+(?:, \w+)*): ")

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Classes: TypeAlias = dict[str, list[ast.ClassDef]]


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each file of the package, by its path below it."""
    files = sorted(PACKAGE.rglob("*.py"))
    return {file.relative_to(PACKAGE).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in files}


@cache
def package_classes() -> Classes:
    """Return the classes of the package by name; several are called Options."""
    return classes_by_name(trees().values())


def classes_by_name(modules: Iterable[ast.Module]) -> Classes:
    """Return the classes at the top of modules by name."""
    by_name: Classes = {}
    for module in modules:
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                by_name.setdefault(node.name, []).append(node)
    return by_name


def bases(owner: ast.ClassDef, classes: Classes) -> Iterator[ast.ClassDef]:
    """Yield the bases of a class, and theirs, as far as they are in the package."""
    waiting, met = [owner], {owner}
    while waiting:
        for base in waiting.pop().bases:
            for node in classes.get(ast.unparse(base).partition("[")[0].rpartition(".")[2], ()):
                if node not in met:
                    met.add(node)
                    waiting.append(node)
                    yield node


def arguments(function: Function) -> list[str]:
    """Return the names of a function's arguments, in order."""
    plain = function.args.posonlyargs + function.args.args + function.args.kwonlyargs
    return [argument.arg for argument in plain if argument.arg not in ("self", "cls")]


def is_command(function: Function) -> bool:
    """Whether the command line describes the arguments, in the help of its options."""
    decorators = [ast.unparse(decorator) for decorator in function.decorator_list]
    signature = ast.unparse(function.args)  # the texts of some commands are in help.toml alone, and all take --json
    return "typer." in signature or "AsJson" in signature or any(".command" in text for text in decorators)


def is_overload(function: Function) -> bool:
    """Whether it is one of several signatures of a function."""
    return any(ast.unparse(decorator).endswith("overload") for decorator in function.decorator_list)


def is_described_elsewhere(function: Function, owner: ast.ClassDef, classes: Classes) -> bool:
    """Whether a base class describes the method; or, where it has no docstring, a protocol that it fits."""
    described = {
        method.name
        for base in bases(owner, classes)
        for method in base.body
        if isinstance(method, Function) and ast.get_docstring(method)
    }
    if function.name in described or ast.get_docstring(function):
        return function.name in described
    protocols = [node for nodes in classes.values() for node in nodes if any(map(is_protocol, node.bases))]
    return any(
        isinstance(method, Function)
        and ast.get_docstring(method) is not None
        and (method.name, arguments(method)) == (function.name, arguments(function))
        for node in protocols
        for method in node.body
    )


def is_protocol(base: ast.expr) -> bool:
    """Whether a base makes a class a protocol."""
    return ast.unparse(base).partition("[")[0] == "Protocol"


def public_functions(
    node: ast.Module | ast.ClassDef, classes: Classes
) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """Yield the public functions and methods that must describe their arguments, with the class of a method."""
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public_functions(child, classes)
        elif isinstance(child, Function) and not child.name.startswith("_"):
            owner = node if isinstance(node, ast.ClassDef) else None
            exempt = is_overload(child) or is_command(child)
            if not exempt and not (owner and is_described_elsewhere(child, owner, classes)):
                yield child, owner


def listed(docstring: str, *headings: str) -> list[str] | None:
    """Return the names in the list `Args:` of a docstring, or below other headings; None without such a list."""
    for heading in headings or ("Args:",):
        _, match, below = f"\n{docstring}\n".partition(f"\n{heading}\n")
        if match:
            entries = [ENTRY.match(line) for line in below.partition("\n\n")[0].splitlines()]
            return [name for entry in entries if entry for name in entry[1].split(", ")]
    return None


def attributes(owner: ast.ClassDef, classes: Classes) -> set[str]:
    """Return the names of a class's fields, attributes and arguments, those of its bases too."""
    names: set[str] = set()
    for node in (owner, *bases(owner, classes)):
        for child in ast.walk(node):
            if isinstance(child, ast.Attribute) and ast.unparse(child.value) == "self":
                names.add(child.attr)
            elif isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                names.add(child.id)
        for child in node.body:
            if isinstance(child, Function):
                names |= {child.name, *(arguments(child) if child.name == "__init__" else ())}
    return names


def faults(module: ast.Module, classes: Classes) -> Iterator[str]:
    """Yield line, name and fault of each function of a module whose docstring does not name its arguments."""
    for function, _ in public_functions(module, classes):
        names, docstring = arguments(function), ast.get_docstring(function) or ""
        named = {name for name in names if re.search(rf"\b{name}\b", docstring)}
        missing = [name for name in names if name not in named]
        entries = listed(docstring)
        place = f"{function.lineno} {function.name}"
        variadic = {extra.arg for extra in (function.args.vararg, function.args.kwarg) if extra}
        if entries is not None and missing:
            yield f"{place}: its list of arguments lacks {', '.join(missing)}"
        elif entries is not None and set(entries) - {*names, *variadic}:
            yield f"{place}: it has no argument {', '.join(sorted(set(entries) - {*names, *variadic}))}"
        elif len(names) >= MANY and len(named) < len(names) / 2:
            yield f"{place}: its docstring names {len(named)} of {len(names)} arguments; not {', '.join(missing)}"


def class_faults(module: ast.Module, classes: Classes) -> Iterator[str]:
    """Yield line, name and fault of each class of a module whose docstring lists what it does not have."""
    for owner in ast.walk(module):
        if isinstance(owner, ast.ClassDef):
            entries = listed(ast.get_docstring(owner) or "", "Args:", "Attributes:") or []
            unknown = sorted(set(entries) - attributes(owner, classes))
            if unknown:
                yield f"{owner.lineno} {owner.name}: it has no {', '.join(unknown)}"


@pytest.mark.parametrize("room", sorted({file.split("/")[0] for file in trees()}))
def test_docstrings_name_the_arguments(room):
    in_room = {file: tree for file, tree in trees().items() if file.split("/")[0] == room}
    texts = [f"{file}:{text}" for file, tree in in_room.items() for text in faults(tree, package_classes())]
    texts += [f"{file}:{text}" for file, tree in in_room.items() for text in class_faults(tree, package_classes())]
    assert not texts, "\n".join(texts)


def faults_of(code: str) -> list[str]:
    """Return the faults of a module."""
    module = ast.parse(code)
    return list(faults(module, classes_by_name([module])))


def test_a_list_of_arguments_is_complete_and_true():
    code = 'def f(x, y):\n    """Add.\n\n    Args:\n        x: a number.\n        z: another.\n    """\n'
    assert faults_of(code) == ["1 f: its list of arguments lacks y"]
    assert faults_of(code.replace("z: another", "y: another")) == []
    assert faults_of(code.replace("y)", "z, y)").replace("z: another", "z, y: others")) == []
    assert faults_of(code.replace("x, y", "x")) == ["1 f: it has no argument z"]


def test_a_list_of_a_class_is_true():
    code = (
        'class C:\n    """A pair.\n\n    Attributes:\n        x: a number.\n        z: another.\n    """\n    x: int\n'
    )
    module = ast.parse(code)
    assert list(class_faults(module, classes_by_name([module]))) == ["1 C: it has no z"]
    module = ast.parse(f"{code}    z: int\n")
    assert list(class_faults(module, classes_by_name([module]))) == []


def test_half_of_many_arguments_are_named():
    assert faults_of('def f(x, y, z):\n    """Add x."""\n') == ["1 f: its docstring names 1 of 3 arguments; not y, z"]
    assert faults_of('def f(x, y, z):\n    """Add x and y."""\n') == []
    assert faults_of('def f(x, y):\n    """Add."""\n') == []


def test_commands_overloads_and_overridden_methods_need_no_list():
    base = 'class Base:\n    def f(self, x, y, z):\n        """Add x, y, z."""\n\n\n'
    assert faults_of(f'{base}class Late(Base):\n    def f(self, x, y, z):\n        """Subtract."""\n') == []
    assert len(faults_of(f'{base}class Late:\n    def f(self, x, y, z):\n        """Subtract."""\n')) == 1
    protocol = base.replace("Base", "Base(Protocol)")
    assert faults_of(f"{protocol}class Late:\n    def f(self, x, y, z):\n        pass\n") == []
    assert len(faults_of(f"{protocol}class Late:\n    def f(self, a, b, c):\n        pass\n")) == 1
    assert faults_of("@app.command()\ndef f(x, y, z):\n    pass\n") == []
    assert faults_of("def f(x: Annotated[int, typer.Option()], y, z):\n    pass\n") == []
    assert faults_of("@overload\ndef f(x, y, z): ...\n") == []
