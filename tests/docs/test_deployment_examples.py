"""The systemd units and the compose file of the deployment page: they are read, and what they start exists."""

import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from fedloom.cli.app import app
from fedloom.flower.processes import executable

FOLDER = Path(__file__).parents[2] / "docs" / "examples"
UNITS = sorted(FOLDER.glob("*.service"))
PREFIX = "/opt/fedloom/bin/"
STARTED = {"fedloom-metrics@": "fedloom", "fedloom-superlink": "flower-superlink", "fedloom-supernode@": "fedloom"}


def checks() -> list[list[str]]:
    """The words of the checks before units start, and of the one that the compose file's comment names."""
    lines = [line for file in UNITS for line in re.findall(r"^ExecStartPre=(.*)$", file.read_text(), re.MULTILINE)]
    lines += re.findall(r"`docker compose run --rm \w+ (.*)`", (FOLDER / "compose.yaml").read_text())
    return [shlex.split(line.removeprefix(PREFIX)) for line in lines]


def units() -> dict[str, list[str]]:
    """The words that each unit starts."""
    return {
        file.stem: shlex.split(re.findall(r"^ExecStart=(.*)$", file.read_text(), re.MULTILINE)[0].removeprefix(PREFIX))
        for file in UNITS
    }


def services() -> dict[str, dict]:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


def commands() -> list[list[str]]:
    return [*units().values(), *(shlex.split(service["command"]) for service in services().values())]


def test_units_start_what_they_are_called_after() -> None:
    assert {name: words[0] for name, words in units().items()} == STARTED


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("file", UNITS, ids=lambda file: file.stem)
def test_systemd_finds_nothing_to_say_about_a_unit(file: Path, tmp_path: Path) -> None:
    """With the commands in another place, for here they are not installed where the unit says."""
    for name in STARTED.values():
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    unit = tmp_path / file.name.replace("@.", "@0.")
    unit.write_text(file.read_text().replace(PREFIX, f"{tmp_path}/"))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60)
    said = [line for line in done.stderr.splitlines() if unit.name in line or str(tmp_path) in line]
    assert (done.returncode, said) == (0, [])


def test_the_compose_file_gives_each_service_its_own_keys_alone() -> None:
    found = services()
    assert set(found) == {"superlink", "node-0", "node-1"}
    for name, service in found.items():
        assert service["image"] == "fedloom"
        private = [
            volume for volume in service["volumes"] if "key" in Path(volume.split(":")[0]).name or "node-0000" in volume
        ]
        assert len(private) == 1
        assert all(volume.endswith(":ro") for volume in service["volumes"] if volume.startswith("./")), name
    build = found["superlink"]["build"]
    root = FOLDER / re.sub(r"\$\{FEDLOOM_SOURCE:-(.*)\}", r"\1", build["context"])
    steps = (root / "Dockerfile").read_text()
    copied = [name for names in re.findall(r"^COPY (.*) \S+$", steps, re.MULTILINE) for name in names.split()]
    assert {"pyproject.toml", "hatch_build.py", "src", "configs", "docs"} <= {*copied}
    assert all((root / name).exists() for name in copied)
    assert {f"!{name}" for name in copied} <= {*(root / ".dockerignore").read_text().splitlines()}
    assert re.findall(r'"(/source.*)"', steps) == ["/source[${EXTRAS}]"]  # what pip installs: no name on an index
    named = {volume.split(":")[0] for service in found.values() for volume in service["volumes"]}
    assert {name for name in named if not name.startswith("./")} == set(
        yaml.safe_load((FOLDER / "compose.yaml").read_text())["volumes"]
    )


def test_a_wheel_builds_from_what_the_compose_file_copies(tmp_path: Path) -> None:
    pytest.importorskip("hatchling.build", reason="needs the dev extra: make setup")
    steps = (FOLDER.parents[1] / "Dockerfile").read_text()
    for names, target in re.findall(r"^COPY (.*) /source(\S*)$", steps, re.MULTILINE):
        for name in names.split():
            source, copy = FOLDER.parents[1] / name, tmp_path / (target.strip("/") or name)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy)
    build = "import hatchling.build; print(hatchling.build.build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout[:8]) == (0, "fedloom-"), done.stderr


def test_our_own_commands_have_the_options_that_are_used() -> None:
    assert len(checks()) == 2
    for words in [*commands(), *checks()]:
        if words[0] == "fedloom":
            group = 4 if words[2] == "check" else 3
            usage = CliRunner().invoke(app, [*words[1:group], "--help"])
            assert usage.exit_code == 0
            text = re.sub(r"\x1b\[[0-9;]*m", "", usage.output)
            assert all(word in text for word in words if word.startswith("--"))


def test_flowers_commands_have_the_options_that_are_used() -> None:
    try:
        scripts = distribution("flwr").entry_points.select(group="console_scripts")
    except PackageNotFoundError:
        pytest.skip("needs the extra flower")
    for words in {words[0]: words for words in commands()}.values():
        if words[0] == "fedloom":
            continue
        assert words[0] in {script.name for script in scripts}
        usage = subprocess.run([executable(words[0]), "--help"], capture_output=True, text=True, timeout=60)
        assert all(word in usage.stdout for word in words if word.startswith("--"))
