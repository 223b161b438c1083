"""Compiled once, kept, and refused with a reason."""

import stat
import subprocess

import pytest

from fedloom.core.errors import FedloomError
from fedloom.nets.kernels import KernelError, compiler, library

needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
GEOMETRY = {"HEIGHT": 4, "WIDTH": 6}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@needs_compiler
def test_a_geometry_is_compiled_once(folder, monkeypatch):
    library.library("pooling", **GEOMETRY)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    library.library("pooling", **GEOMETRY)
    (kept,) = folder.iterdir()  # and nothing else is left there
    assert kept.suffix == ".so"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@needs_compiler
def test_other_geometries_flags_and_processors_are_other_libraries(folder, monkeypatch):
    for wide in (6, 8):
        library.library("pooling", HEIGHT=4, WIDTH=wide)
    for name, value in {"FLAGS": (*library.FLAGS, "-g"), "_processor": lambda: "another"}.items():
        library._digest.cache_clear()
        monkeypatch.setattr(library, name, value)
        library.library("pooling", **GEOMETRY)
    library._digest.cache_clear()
    assert len(list(folder.iterdir())) == 4


def test_no_compiler(folder, monkeypatch):
    monkeypatch.setattr(library, "compiler", lambda: None)
    with pytest.raises(KernelError, match=r"needs a C\+\+ compiler.*install g\+\+ or clang\+\+"):
        library.library("pooling", HEIGHT=3, WIDTH=3)


def test_the_compiler_may_be_named(monkeypatch, tmp_path):
    own = tmp_path / "own-compiler"
    own.touch(mode=0o755)
    monkeypatch.setenv("CXX", str(own))
    assert compiler.__wrapped__() == str(own)
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler.__wrapped__() is None


@needs_compiler
def test_what_the_compiler_says_is_told(folder):
    with pytest.raises(KernelError, match=r"could not compile pooling.cpp with \{'HEIGHT': 4\}(?s:.*)WIDTH"):
        library.library("pooling", HEIGHT=4)
    assert not list(folder.iterdir())


@needs_compiler
def test_a_folder_that_others_may_write_to_is_refused(folder):
    """What lies there is run."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(KernelError, match="others may write there"):
        library.library("pooling", **GEOMETRY)


@needs_compiler
def test_a_folder_that_cannot_be_written(folder):
    folder.parent.touch()
    with pytest.raises(KernelError, match=r"cannot be written.*FEDLOOM_CACHE"):
        library.library("pooling", **GEOMETRY)


def test_its_errors_are_expected_ones():
    assert issubclass(KernelError, FedloomError)
