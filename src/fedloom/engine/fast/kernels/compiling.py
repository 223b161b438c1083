"""C++ sources as libraries for the processor at hand: compiled when they are first needed, then kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TypeAlias

from fedloom.core.errors import FedloomError
from fedloom.core.files import cache_dir

_Macros: TypeAlias = tuple[tuple[str, int], ...]
HERE = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fno-math-errno", "-fopenmp-simd")


class KernelError(FedloomError):
    """Kernels were asked for that cannot be compiled here."""


@cache
def compiler() -> str | None:
    """The C++ compiler's path: $CXX, else c++, g++ or clang++; None if there is none."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def library(source: Path, **macros: int) -> ctypes.CDLL:
    """A C++ file compiled with `macros`. It may include headers beside it, and those of this folder.

    Raises `KernelError` if it cannot be compiled here, or kept where only this user may write.
    """
    text = source.read_text(encoding="utf-8")
    return _library(source.stem, text, source.parent, tuple(sorted(macros.items())))


def _library(name: str, text: str, beside: Path, macros: _Macros) -> ctypes.CDLL:
    folder = cache_dir() / "kernels"
    built = folder / f"{name}-{_digest(text, beside, macros)}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _others_may_write(folder):
            raise KernelError(
                f"cache folder {folder}: others may write there, and what lies in it is run; set FEDLOOM_CACHE to a "
                "folder of your own"
            )
        if not built.exists():
            _compile(name, text, beside, macros, built)
    except OSError as error:
        raise KernelError(
            f"cache folder {folder}: cannot be written ({error.strerror}); set FEDLOOM_CACHE to one that can"
        ) from None
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise KernelError(f"{built}: cannot be loaded ({error}); delete it, or name another compiler in $CXX") from None


def _others_may_write(folder: Path) -> bool:
    told = folder.stat()
    return os.name == "posix" and (told.st_uid != os.getuid() or bool(told.st_mode & 0o022))


def _compile(name: str, text: str, beside: Path, macros: _Macros, to: Path) -> None:
    if (found := compiler()) is None:
        raise KernelError(
            "engine.kernels = own needs a C++ compiler, and there is none; install g++ or clang++, name one in "
            "$CXX, or take engine.kernels: torch"
        )
    with tempfile.TemporaryDirectory(dir=to.parent, prefix="compiling-") as folder:
        source, made = Path(folder) / f"{name}.cpp", Path(folder) / to.name
        source.write_text(text, encoding="utf-8")
        given = [f"-D{macro}={value}" for macro, value in macros]
        command = [found, *FLAGS, *given, f"-I{beside}", f"-I{HERE}", "-o", str(made), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not made.exists():
            told = f" with {dict(macros)}" if macros else ""
            raise KernelError(f"{found} could not compile {name}.cpp{told}: {_first_error(done)}")
        made.replace(to)  # whole or not at all: another process may compile the same


def _first_error(done: subprocess.CompletedProcess[str]) -> str:
    """What a compiler had to say, in a line."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    said = next((line for line in lines if "error" in line), lines[-1] if lines else "it says nothing")
    return f"{said} (exit code {done.returncode})"


@cache
def _digest(text: str, beside: Path, macros: _Macros) -> str:
    """Of everything that the library's code depends on. A home folder may be shared by machines of several kinds."""
    headers = [path.read_bytes() for folder in (beside, HERE) for path in sorted(folder.glob("*.h"))]
    told = repr((macros, FLAGS, _version(), _processor())).encode()
    return hashlib.sha256(b"\0".join([text.encode(), *headers, told])).hexdigest()[:24]


@cache
def _version() -> str:
    """The compiler and its version: another one may sum in another order."""
    found = compiler()
    try:
        return subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout if found else ""
    except OSError as error:
        raise KernelError(f"{found}: cannot be run ({error.strerror}); name a C++ compiler in $CXX") from None


@cache
def _processor() -> str:
    """What this processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join(sorted(told))
