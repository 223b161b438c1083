"""Compiled once, kept, and refused with a reason."""

import multiprocessing
import os
import stat
import subprocess
import time

import pytest

from fedloom.core.errors import ConfigError
from fedloom.engine.choose import EngineChoice, choose_engine
from fedloom.engine.fast.kernels import compiling
from fedloom.engine.fast.kernels.compiling import Compilation, KernelError, compiler, library
from support import configured, world

SOURCE = '#include "numbers.h"\nextern "C" int answer() { return SIX * FACTOR; }\n'
NO_LIBRARY = "#!/bin/sh\n[ $1 = --version ] && exit\nwhile [ $1 != -o ]; do shift; done\necho x > $2\n"
needs_compiler = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def source(tmp_path):
    """A C++ file, and a header beside it."""
    (tmp_path / "numbers.h").write_text("#define SIX 6\n")
    (tmp_path / "answer.cpp").write_text(SOURCE)
    return tmp_path / "answer.cpp"


@needs_compiler
def test_a_file_is_compiled_once(folder, source, monkeypatch):
    assert library(source, FACTOR=7).answer() == 42
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("compiled again"))
    library(source, FACTOR=7)
    (kept,) = folder.iterdir()  # and nothing else is left there
    assert kept.suffix == ".so"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@needs_compiler
@pytest.mark.parametrize("change", ["macro", "header", "flags", "processor", "compiler"])
def test_whatever_the_code_depends_on_makes_another_library(change, folder, source, monkeypatch):
    library(source, FACTOR=7)
    factor = 8 if change == "macro" else 7
    if change == "header":
        (source.parent / "numbers.h").write_text("#define SIX 60\n")
    elif change == "flags":
        monkeypatch.setattr(compiling, "FLAGS", (*compiling.FLAGS, "-g"))
    elif change in ("processor", "compiler"):
        function = {"processor": "_processor", "compiler": "_compiler_version"}[change]
        monkeypatch.setattr(compiling, function, lambda: "another")
    assert library(source, FACTOR=factor).answer() == {"macro": 48, "header": 420}.get(change, 42)
    assert len(list(folder.iterdir())) == 2


def test_no_compiler(folder, source, monkeypatch):
    monkeypatch.setattr(compiling, "compiler", lambda: None)
    with pytest.raises(KernelError, match=r"needs a C\+\+ compiler.*install g\+\+ or clang\+\+"):
        library(source, FACTOR=7)


def test_the_compiler_may_be_named(monkeypatch, tmp_path):
    own = tmp_path / "own-compiler"
    own.touch(mode=0o755)
    monkeypatch.setenv("CXX", str(own))
    assert compiler.__wrapped__() == str(own)
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compiler.__wrapped__() is None


def test_a_folder_as_compiler_is_one_line_before_training(named, tmp_path, monkeypatch):
    named("replaced by its folder")
    monkeypatch.setenv("CXX", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"{tmp_path}: cannot be run \(.*\); name a C\+\+ compiler") as caught:
        asked_for()
    assert "\n" not in str(caught.value)


@needs_compiler
def test_what_the_compiler_says_is_told(folder, source):
    with pytest.raises(KernelError, match=r"could not compile answer.cpp with \{'OTHER': 4\}(?s:.*)FACTOR"):
        library(source, OTHER=4)
    assert not list(folder.iterdir())


@pytest.fixture
def named(tmp_path, monkeypatch, folder):
    """A compiler in $CXX, as a shell script."""

    def name(script):
        path = tmp_path / "own-compiler"
        path.write_text(script)
        path.chmod(0o755)
        monkeypatch.setenv("CXX", str(path))
        for function in (compiler, compiling._compiler_version):
            function.cache_clear()

    yield name
    for function in (compiler, compiling._compiler_version):
        function.cache_clear()


def test_ten_runs_that_end_at_once_start_one_compiler(named, folder, source, tmp_path):
    """The compiler outlives the run that started it, and so does its lock."""
    starts, go = tmp_path / "starts", tmp_path / "go"
    wait = f"echo $$ >> {starts}\nuntil [ -e {go} ]; do sleep 0.05; done\n"
    named(NO_LIBRARY.replace("while", f"{wait}while"))
    compiling._compiler_version()
    for together in (5, 1, 4):
        runs = [
            multiprocessing.get_context("fork").Process(target=Compilation, args=(source, ())) for _ in range(together)
        ]
        for run in runs:
            run.start()
        for run in runs:
            run.join()
        assert [run.exitcode for run in runs] == [0] * together
    go.touch()
    deadline = time.monotonic() + 60
    while [path.suffix for path in folder.iterdir()] != [".so"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert len(starts.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("#!/bin/sh\nexit 1\n", r"could not compile pooling\.cpp .*: it says nothing \(exit code 1\)"),
        ("#!/bin/sh\nprintf 'a\nb: error: c\nd\n' >&2; exit 3\n", r"b: error: c \(exit code 3\)"),
        ("#!/bin/sh\nexit 0\n", r"could not compile pooling\.cpp"),
        ("no program", r"own-compiler: cannot be run \(Exec format error\); name a C\+\+ compiler in \$CXX"),
        (NO_LIBRARY, r"cannot be loaded .*; delete it"),
        ("#!/bin/sh\nprintf '\\377\\376\n'; printf 'error: \\377\n' >&2; exit 1\n", r"error: \ufffd \(exit code 1\)"),
        (
            "#!/bin/sh\nexec sleep 60\n",
            r"own-compiler: did not report its version within 0\.2 s; .* FEDLOOM_NO_COMPILER=1",
        ),
    ],
    ids=["fails", "speaks", "makes nothing", "no program", "makes no library", "prints garbage", "hangs"],
)
def test_a_compiler_that_fails_is_one_line_before_training(named, script, says, monkeypatch):
    named(script)
    if "sleep" in script:
        monkeypatch.setattr(compiling, "_VERSION_SECONDS", 0.2)
    with pytest.raises(ConfigError, match=f"engine.kernels: own cannot be used: .*{says}") as caught:
        asked_for()
    assert "\n" not in str(caught.value)


@needs_compiler
def test_a_folder_that_others_may_write_to_is_one_line_before_training(folder):
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match=r"own cannot be used: cache folder .*others can write to it") as caught:
        asked_for()
    assert "\n" not in str(caught.value)


def asked_for():
    """Own kernels for a LeNet."""
    toy = world(configured("fedavg"), [[0, 1], [1, 2]], net="lenet5", shape=(1, 28, 28))
    choose_engine(toy.federation, toy.worker, EngineChoice(name="serial", kernels="own"))


@needs_compiler
def test_a_library_that_another_user_has_put_there_is_not_run(folder, source, monkeypatch):
    """The folder may have been open to others before."""
    library(source, FACTOR=7)
    (built,) = folder.iterdir()
    user = os.getuid()
    monkeypatch.setattr(compiling, "_others_may_write", lambda folder: False)
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(KernelError, match=rf"{built.name}: another user has made it.*delete it"):
        library(source, FACTOR=7)


@needs_compiler
def test_a_folder_that_cannot_be_written(folder, source):
    folder.parent.touch()
    with pytest.raises(KernelError, match=r"cannot be written.*FEDLOOM_CACHE"):
        library(source, FACTOR=7)
