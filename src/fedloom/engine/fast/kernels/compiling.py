"""Compile C++ sources to libraries for this processor on first use, and cache them."""

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
KERNELS_FOLDER = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fno-math-errno", "-fopenmp-simd")


class KernelError(FedloomError):
    """The config needs own kernels, and they cannot be compiled here."""


@cache
def compiler() -> str | None:
    """Return the path of the C++ compiler: $CXX, else c++, g++ or clang++; None if there is none."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def library(source: Path, **macros: int) -> ctypes.CDLL:
    """Return a C++ file compiled with `macros`. It may include headers of its own folder and of this one.

    Raises `KernelError` if it cannot be compiled, or if others may write into the cache.
    """
    text = source.read_text(encoding="utf-8")
    return _library(source.stem, text, source.parent, tuple(sorted(macros.items())))


def _library(name: str, text: str, folder_of_source: Path, macros: _Macros) -> ctypes.CDLL:
    folder = cache_dir() / "kernels"
    built = folder / f"{name}-{_digest(text, folder_of_source, macros)}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _others_may_write(folder):
            raise KernelError(
                f"cache folder {folder}: others may write there, and what lies in it is run; set FEDLOOM_CACHE to a "
                "folder of your own"
            )
        if not built.exists():
            _compile(name, text, folder_of_source, macros, built)
    except OSError as error:
        raise KernelError(
            f"cache folder {folder}: cannot be written ({error.strerror}); set FEDLOOM_CACHE to one that can"
        ) from None
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise KernelError(f"{built}: cannot be loaded ({error}); delete it, or name another compiler in $CXX") from None


def _others_may_write(folder: Path) -> bool:
    status = folder.stat()
    return os.name == "posix" and (status.st_uid != os.getuid() or bool(status.st_mode & 0o022))


def _compile(name: str, text: str, folder_of_source: Path, macros: _Macros, target: Path) -> None:
    if (path := compiler()) is None:
        raise KernelError(
            "engine.kernels = own needs a C++ compiler, and there is none; install g++ or clang++, name one in "
            "$CXX, or take engine.kernels: torch"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="compiling-") as folder:
        source, output = Path(folder) / f"{name}.cpp", Path(folder) / target.name
        source.write_text(text, encoding="utf-8")
        definitions = [f"-D{macro}={value}" for macro, value in macros]
        command = [
            path,
            *FLAGS,
            *definitions,
            f"-I{folder_of_source}",
            f"-I{KERNELS_FOLDER}",
            "-o",
            str(output),
            str(source),
        ]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode or not output.exists():
            geometry = f" with {dict(macros)}" if macros else ""
            raise KernelError(f"{path} could not compile {name}.cpp{geometry}: {_first_error(process)}")
        output.replace(target)  # atomic, because another process may compile the same library


def _first_error(process: subprocess.CompletedProcess[str]) -> str:
    """Return a compiler's first error message in one line."""
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    message = next((line for line in lines if "error" in line), lines[-1] if lines else "it says nothing")
    return f"{message} (exit code {process.returncode})"


@cache
def _digest(text: str, folder_of_source: Path, macros: _Macros) -> str:
    """Return a digest of all that the library depends on; machines of several kinds may share a home folder."""
    headers = [
        path.read_bytes() for folder in (folder_of_source, KERNELS_FOLDER) for path in sorted(folder.glob("*.h"))
    ]
    build = repr((macros, FLAGS, _compiler_version(), _processor())).encode()
    return hashlib.sha256(b"\0".join([text.encode(), *headers, build])).hexdigest()[:24]


@cache
def _compiler_version() -> str:
    """Return the compiler and its version, because another one may sum in another order."""
    path = compiler()
    try:
        return subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout if path else ""
    except OSError as error:
        raise KernelError(f"{path}: cannot be run ({error.strerror}); name a C++ compiler in $CXX") from None


@cache
def _processor() -> str:
    """Return the processor's model and instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    facts = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join(sorted(facts))
