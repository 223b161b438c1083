"""The house of docs/architecture.md: a file imports only from floors below its own, and from its own folder."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedloom"
FLOORS: dict[str, int] = {
    "_version": 0,
    "core": 1,
    **dict.fromkeys(["data", "nets"], 2),
    **dict.fromkeys(["methods", "evaluation"], 3),
    **dict.fromkeys(["engine", "keys"], 4),  # keys.pyi has types alone
    "runs": 5,
    "results": 6,
    **dict.fromkeys(["diagnosis", "papers", "flower", "study"], 7),
    **dict.fromkeys(["api", "cli"], 8),
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
        assert FLOORS[word] < FLOORS[own], f"{own} must not import {word}"


def test_every_place_has_a_floor() -> None:
    places = {p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in FILES}
    assert places | {"keys"} == set(FLOORS)


def test_at_most_two_files_import_each_other() -> None:
    modules = {".".join(("fedloom", *p.relative_to(SOURCE).with_suffix("").parts)): p for p in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph = {name: modules_imported(path, modules) - {name} for name, path in modules.items()}
    reachable = {name: reached(name, graph) for name in graph}
    circles = {frozenset(other for other in reachable[name] if name in reachable[other]) for name in graph}
    assert [sorted(circle) for circle in circles if len(circle) > 2] == []


def modules_imported(path: Path, modules: Mapping[str, Path]) -> set[str]:
    """Modules of fedloom that a file imports, lazy ones included."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    submodules = {name.rpartition(".")[0] for name in names & modules.keys()}
    return {name for name in names & modules.keys() if name not in submodules or modules[name].stem != "__init__"}


def reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    """All modules that `start` imports, directly or through others."""
    visited: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - visited:
            visited.add(name)
            waiting.append(name)
    return visited


# -- inside the engine -------------------------------------------------------------------------------------------------
ENGINE = SOURCE / "engine"
# From below to above: a file imports from lower places only, or from its own folder.
ENGINE_FLOORS: dict[str, int] = {
    **dict.fromkeys(["steps", "optimizer", "batch_sampler", "keys", "client_phases"], 0),
    **dict.fromkeys(["jobs", "round_report"], 0),
    "fast": 1,
    "speedups": 2,
    "client": 3,
    **dict.fromkeys(["serial", "states", "clock"], 4),
    **dict.fromkeys(["threads", "loop", "stacked"], 5),
    **dict.fromkeys(["processes", "flops"], 6),
    "device": 7,
    "ray": 7,
    "choose": 8,
    "__init__": 9,
}
ENGINE_FILES = [path for path in FILES if ENGINE in path.parents]


def engine_imports(path: Path) -> Iterator[str]:
    """Modules of the engine that a file imports, without `fedloom.engine.`; lazy ones and those by name included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "fedloom.engine":
            yield from (alias.name if (ENGINE / f"{alias.name}.py").exists() else "__init__" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedloom.engine."):
            yield node.module.removeprefix("fedloom.engine.")
        elif isinstance(node, ast.Import):
            yield from (
                a.name.removeprefix("fedloom.engine.") for a in node.names if a.name.startswith("fedloom.engine.")
            )
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("fedloom.engine.")
        ):
            yield node.value.removeprefix("fedloom.engine.")


@pytest.mark.parametrize("path", ENGINE_FILES, ids=lambda p: str(p.relative_to(ENGINE)))
def test_imports_go_down_inside_the_engine(path: Path) -> None:
    own = path.relative_to(ENGINE).parts[0].removesuffix(".py")
    for module in engine_imports(path):
        word = module.split(".")[0]
        level = ENGINE_FLOORS[word] <= 0 and ENGINE_FLOORS[own] == 0  # the lowest may import each other
        assert word == own or level or ENGINE_FLOORS[word] < ENGINE_FLOORS[own], f"engine/{own} must not import {word}"


def test_every_file_of_the_engine_has_a_floor() -> None:
    assert {p.relative_to(ENGINE).parts[0].removesuffix(".py") for p in ENGINE_FILES} == set(ENGINE_FLOORS)


def test_files_of_the_engine_do_not_import_in_circles() -> None:
    names = {".".join(p.relative_to(ENGINE).with_suffix("").parts): p for p in ENGINE_FILES}
    packages = {name.removesuffix(".__init__"): name for name in names}
    graph = {name: [packages.get(module, module) for module in engine_imports(path)] for name, path in names.items()}
    assert {module for modules in graph.values() for module in modules} <= set(names)
    assert len(list(TopologicalSorter(graph).static_order())) == len(names)  # raises `CycleError`


def test_the_engine_knows_one_door_to_what_is_fast() -> None:
    words = re.compile(r"\b(recorders?|recordings?|recorded|hurry|hurried|native|room)\b", re.IGNORECASE)
    found = {
        str(path.relative_to(ENGINE)): set(words.findall(path.read_text(encoding="utf-8")))
        for path in ENGINE_FILES
        if path.relative_to(ENGINE).parts[0] != "fast"
    }
    assert {name: said for name, said in found.items() if said} == {}
    outside = [path for path in FILES if ENGINE / "fast" not in path.parents]
    doors = [path for path in outside if "fedloom.engine.fast" in path.read_text(encoding="utf-8")]
    assert doors == [ENGINE / "speedups.py"]


# -- what importing costs ----------------------------------------------------------------------------------------------
def modules_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    "statement",
    ["import fedloom", "import fedloom.cli.app", "import fedloom.results.report", "import fedloom.results.result"],
)
def test_importing_is_light(statement: str) -> None:
    loaded = modules_after(statement)
    assert not loaded & {"torch", "matplotlib", "sklearn", "pyarrow", "numpy", "jinja2", "platformdirs"}
    if "results" not in statement:
        assert not loaded & {"pydantic", "fedloom.runs.config.reference"}


def test_a_run_starts_with_little_beside_torch() -> None:
    loaded = modules_after("import fedloom.runs.run")
    assert not loaded & {"scipy", "pandas", "matplotlib", "sklearn", "pyarrow", "jinja2", "PIL", "onnx", "flwr", "ray"}


def test_running_needs_no_plots_and_no_scikit_learn() -> None:
    loaded = modules_after(
        "from fedloom.runs.run import run; from fedloom.data import SOURCES; SOURCES.get('digits')().load()"
    )
    assert not loaded & {"matplotlib", "sklearn", "pyarrow", "torchvision"}


def test_no_file_is_too_long() -> None:
    long = {str(p.relative_to(SOURCE)): n for p in FILES if (n := len(p.read_text().splitlines())) > 400}
    assert not long
