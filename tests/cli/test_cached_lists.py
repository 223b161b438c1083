"""Lists that the package has or the cache keeps: quick, current, and not needed."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import statistics
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedloom.cli import cached_lists
from fedloom.cli.cached_lists import cached_list

ROOT = Path(__file__).parents[2]
_CPU_SECONDS = 0.7  # of one command, with the start of Python


def cpu_seconds(cache: Path, *words: str, path: Path = ROOT / "src") -> float:
    """Run a command of the fedloom in the folder `path`; the CPU time that it took in user and system mode."""
    before = os.times()
    environment = {**os.environ, "FEDLOOM_CACHE": str(cache), "PYTHONPATH": str(path)}
    subprocess.run([sys.executable, "-m", "fedloom", *words], env=environment, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.mark.parametrize("word", ["methods", "datasets", "--help"])
def test_a_list_takes_little_processor_time(tmp_path: Path, word: str) -> None:
    cpu_seconds(tmp_path, word)  # makes the list
    assert statistics.median(cpu_seconds(tmp_path, word) for _ in range(3)) <= _CPU_SECONDS


def test_the_first_list_after_installation_takes_little_processor_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = pytest.importorskip("hatchling.build", reason="needs the dev extra: make setup")
    monkeypatch.chdir(ROOT)
    site, cache = tmp_path / "site", tmp_path / "cache"
    with zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
        wheel.extractall(site)
    cpu_seconds(cache, "--help", path=site)  # compiles the commands, as an installer does
    assert all(cpu_seconds(cache, word, path=site) <= _CPU_SECONDS for word in ("methods", "datasets", "models"))
    assert not cache.exists()


class Maker:
    """Makes a list, and counts how often."""

    def __init__(self, complete: bool = True) -> None:
        self.calls, self.complete = 0, complete

    def __call__(self) -> tuple[Any, bool]:
        self.calls += 1
        return {"mine": {"keys": (1, 2)}}, self.complete


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small package in the place of fedloom, an empty cache, and a process without torch."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "code.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.setattr(cached_lists, "_PACKAGE", folder)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return folder


def edit(package: Path) -> None:
    (package / "code.py").write_text("x = 2\n", encoding="utf-8")


def add_file(package: Path) -> None:
    (package / "more.py").touch()


def add_plug_in(package: Path) -> Path:
    """Install a plug-in beside the package, and return its source."""
    distribution = package.parent / "toy-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Name: toy\nVersion: 1.0\n", encoding="utf-8")
    (distribution / "entry_points.txt").write_text("[fedloom.methods]\ntoy = toy_plugin:Toy\n", encoding="utf-8")
    source = package.parent / "toy_plugin.py"
    source.write_text("Toy = 1\n", encoding="utf-8")
    return source


def record(package: Path) -> None:
    """Note every file of the package as installed, with a list of toys of its own."""
    listed = package / "cli" / "lists" / "toys.json"
    listed.parent.mkdir(parents=True)
    listed.write_text('{"packaged": 1}', encoding="utf-8")
    installation = package.parent / f"{package.name}-1.0.dist-info"
    installation.mkdir()
    (installation / "METADATA").write_text(f"Name: {package.name}\nVersion: 1.0\n", encoding="utf-8")
    lines = []
    for file in filter(Path.is_file, package.rglob("*")):
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
        lines.append(f"{file.relative_to(package.parent)},sha256={digest},{file.stat().st_size}\n")
    (installation / "RECORD").write_text("".join(lines), encoding="utf-8")


@pytest.fixture
def installed(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small package as an installer leaves it."""
    record(package)
    monkeypatch.syspath_prepend(str(package.parent))
    return package


def test_an_installed_package_has_its_lists(installed: Path) -> None:
    assert cached_list("toys", make := Maker()) == {"packaged": 1}
    assert (make.calls, (installed.parent / "cache").exists()) == (0, False)


def edit_list(package: Path) -> None:
    (package / "cli" / "lists" / "toys.json").write_text('{"packaged": 2}', encoding="utf-8")


def remove_list(package: Path) -> None:
    (package / "cli" / "lists" / "toys.json").unlink()


def damage_record(package: Path) -> None:
    (package.parent / f"{package.name}-1.0.dist-info" / "RECORD").write_bytes(b"\xff")


@pytest.mark.parametrize("change", [edit, add_file, edit_list, remove_list, damage_record, add_plug_in])
def test_an_installed_list_holds_for_the_code_as_it_was_installed(
    installed: Path, change: Callable[[Path], None]
) -> None:
    change(installed)
    assert cached_list("toys", Maker()) == {"mine": {"keys": [1, 2]}}


def test_the_list_of_another_installation_is_not_taken(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout on the path hides the installed package, whose record and list stay where they are."""
    record(package)
    checkout = package.parent / "checkout" / package.name
    checkout.mkdir(parents=True)
    (checkout / "code.py").write_text("x = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(cached_lists, "_PACKAGE", checkout)
    assert cached_list("toys", Maker()) == {"mine": {"keys": [1, 2]}}


def kept(package: Path) -> Path:
    return next((package.parent / "cache").rglob("*.json"))


def test_a_list_is_made_once_and_reads_the_same(package: Path) -> None:
    make = Maker()
    assert [cached_list("toys", make) for _ in range(3)] == [{"mine": {"keys": [1, 2]}}] * 3
    assert make.calls == 1
    assert kept(package).stat().st_mode & 0o077 == 0


def damage(package: Path) -> None:
    kept(package).write_text("{", encoding="utf-8")


def forge(package: Path) -> None:
    content = json.loads(kept(package).read_text(encoding="utf-8"))
    kept(package).write_text(json.dumps({**content, "list": {}}), encoding="utf-8")


def replace_by_folder(package: Path) -> None:
    path = kept(package)
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("change", [edit, add_file, damage, forge, replace_by_folder])
def test_a_list_is_made_again_when_code_or_the_file_changed(package: Path, change: Callable[[Path], None]) -> None:
    make = Maker()
    cached_list("toys", make)
    change(package)
    assert cached_list("toys", make) == {"mine": {"keys": [1, 2]}}
    assert make.calls == 2


def test_a_plug_in_shows_up_at_once(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker()
    cached_list("toys", make)
    source = add_plug_in(package)
    monkeypatch.syspath_prepend(str(package.parent))
    cached_list("toys", make)
    assert make.calls == 2
    source.write_text("Toy = 1  # edited\n", encoding="utf-8")
    cached_list("toys", make)
    assert make.calls == 3


def test_a_list_without_a_broken_plug_in_is_not_kept(package: Path) -> None:
    make = Maker(complete=False)
    cached_list("toys", make)
    cached_list("toys", make)
    assert make.calls == 2


def test_a_cache_that_cannot_be_written_costs_time_alone(package: Path) -> None:
    (package.parent / "cache").write_text("a file is in the way", encoding="utf-8")
    assert cached_list("toys", Maker()) == {"mine": {"keys": [1, 2]}}


def test_a_process_that_knows_more_neither_keeps_nor_reads(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", sys)
    cached_list("toys", make := Maker())
    cached_list("toys", make)
    assert (make.calls, list((package.parent / "cache").rglob("*.json"))) == (2, [])
