"""What a run imports: its method and the bases of it, nothing that only other methods, tables or reports need."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedloom.methods import METHODS

CODE = """
import sys
from fedloom.cli.app import main
try:
    main(sys.argv[1:])
finally:
    print("modules:", *sys.modules)
"""
SHORT = ["rounds=1", "engine=serial", "model={name: mlp, hidden: [8]}", "--quiet"]


def modules_of_run(method: str, folder: Path) -> set[str]:
    words = ["run", "demo", f"method={method}", *SHORT, "--out", str(folder)]
    run = subprocess.run([sys.executable, "-c", CODE, *words], capture_output=True, text=True, check=True)
    return set(run.stdout.rpartition("modules:")[2].split())


@pytest.mark.parametrize(("method", "bases"), [("fedavg", set()), ("fedprox", {"fedavg"}), ("ditto", {"fedavg"})])
def test_a_run_imports_its_own_method_alone(method: str, bases: set[str], tmp_path: Path) -> None:
    loaded = modules_of_run(method, tmp_path / "run")
    modules = {name: METHODS.get(name).__module__ for name in METHODS.names()}
    wanted = {modules[name] for name in (method, *bases)}
    assert modules[method] in loaded
    assert loaded & {*modules.values()} <= wanted
    assert not loaded & {"pandas", "matplotlib", "sklearn", "torchvision", "optuna", "flwr", "ray"}
    assert not [name for name in loaded if name.startswith(("fedloom.papers", "fedloom.diagnosis", "fedloom.flower"))]
