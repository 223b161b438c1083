"""Each target installs what it needs, and a wheel holds every file of the package."""

import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from fedloom.cli.pages import topics

ROOT = Path(__file__).parents[1]


def installed_by(target: str, *stamps: str) -> list[str]:
    """Return the requirements that `make TARGET` would install, where `stamps` of .venv are newer than everything."""
    command = ["make", "--dry-run", "--always-make", *(f"--old-file=.venv/{stamp}" for stamp in stamps), target]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return re.findall(r"--editable '?([^'\s]+)", lines)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on the path")
@pytest.mark.parametrize(
    ("target", "requirements"),
    [
        ("demo", ["."]),
        ("docs", [".", ".[docs]"]),
        ("test", [".", ".[dev]"]),
        ("test-matrix", [".", ".[dev]"]),
        ("setup", [".", ".[dev]"]),
    ],
)
def test_a_target_installs_what_it_needs(target: str, requirements: list[str]) -> None:
    assert installed_by(target) == requirements


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on the path")
def test_tests_add_to_the_environment_of_the_demo_and_the_demo_to_none() -> None:
    assert installed_by("test", ".ready") == [".[dev]"]
    assert installed_by("demo", ".ready", ".dev") == []


def test_a_wheel_holds_every_file_of_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = pytest.importorskip("hatchling.build", reason="needs the dev extra: make setup")
    monkeypatch.chdir(ROOT)
    with zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = [(path, ROOT / "src") for path in (ROOT / "src" / "fedloom").rglob("*")]
    expected = {path.relative_to(base).as_posix() for path, base in files if path.is_file()}
    further = [*(ROOT / "configs").rglob("*.yaml"), *topics().values()]
    expected |= {f"fedloom/{path.relative_to(ROOT).as_posix()}" for path in further}
    assert packed == {name for name in expected if "__pycache__" not in name}
