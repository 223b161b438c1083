"""Compile C++ sources to libraries for this processor on first use, and cache them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout

from fedloom.core.errors import ConfigError, FedloomError
from fedloom.core.files import cache_dir

KERNELS_FOLDER = Path(__file__).parent
_VERSION_SECONDS = 30.0  # for a compiler to tell its version
_LOCK_SECONDS = 0.5  # between two looks whether another run has compiled a library
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fno-math-errno", "-fopenmp-simd")


@dataclass(frozen=True, slots=True)
class _Build:
    """A library to compile: its name, the text of its source, and what the compiler is called with."""

    name: str
    text: str
    folder_of_source: Path
    macros: tuple[tuple[str, int], ...]
    flags: tuple[str, ...]


class KernelError(FedloomError):
    """The config needs own kernels, and they cannot be compiled here."""


@cache
def compiler() -> str | None:
    """Return the path of the C++ compiler: $CXX, else c++, g++ or clang++; None if there is none.

    With FEDLOOM_NO_COMPILER=1 there is none. A path in $CXX that is no program is returned as it is, so that whoever
    runs it says so, and another compiler is not taken in silence.
    """
    if os.environ.get("FEDLOOM_NO_COMPILER", "0") not in ("", "0"):
        return None
    named = os.environ.get("CXX", "")
    if os.path.lexists(named) and shutil.which(named) is None:
        return named
    return next((path for name in (named, "c++", "g++", "clang++") if name and (path := shutil.which(name))), None)


def library(source: Path, **macros: int) -> ctypes.CDLL:
    """Return a C++ file compiled with `macros`. It may include headers of its own folder and of this one.

    Raises `KernelError` if it cannot be compiled, or if others may write into the cache.
    """
    built = compiled(source, None, **macros)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise KernelError(f"{built}: cannot be loaded ({error}); delete it, or name another compiler in $CXX") from None


def compiled(source: Path, flags: tuple[str, ...] | None = None, **macros: int) -> Path:
    """Return the path of the library that a C++ file is compiled to, in the cache; compile it if it is not there.

    Raises `KernelError` as `library` does.

    Args:
        source: the C++ file.
        flags: options of the compiler in place of `FLAGS`; see `fast/torch_library.py` for the headers of torch.
        macros: numbers that are defined for the compiler by name.
    """
    build, built = _planned(source, flags or FLAGS, macros)
    if not built.exists():
        with (
            _readable_errors(built.parent),
            tempfile.TemporaryDirectory(dir=built.parent, prefix="compiling-") as folder,
        ):
            command, output = _command(build, Path(folder))
            process = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            if process.returncode or not output.exists():
                raise _failure(build, process.stderr, process.returncode)
            output.replace(built)  # atomic, because another process may compile the same library
    return built


class BackgroundCompilation:
    """A library that a process of its own compiles; that process continues if this one ends.

    If another run compiles it already, this one waits for that. No pipe connects the two processes, because workers
    that are forked meanwhile would keep it open.

    Raises `KernelError` as `library` does, for what is known before the compiler runs.

    Attributes:
        path: the library, which is there once `finished` has returned True.
    """

    def __init__(self, source: Path, flags: tuple[str, ...]) -> None:
        self._build, self.path = _planned(source, flags, {})
        self._process: subprocess.Popen[bytes] | None = None
        self._owner, self._lock = os.getpid(), FileLock(f"{self.path}.lock", thread_local=False)
        self._begin(0)

    def finished(self, *, wait: bool = False) -> bool:
        """Return whether the library is there. Raises `KernelError` if it cannot be compiled.

        Args:
            wait: wait until it is there.
        """
        if os.getpid() != self._owner:  # a worker, forked meanwhile
            return self.path.exists()
        while self._process is None and not self._begin(_LOCK_SECONDS if wait else 0) and wait:
            pass
        process = self._process
        code = None if process is None else process.wait() if wait else process.poll()
        if code is not None:
            self._process = None
            self._lock.release()
            with self._messages as file:
                file.seek(0)
                messages = file.read().decode(errors="replace")
            if code:
                raise _failure(self._build, messages, code)
        return self.path.exists()

    def _begin(self, seconds: float) -> bool:
        """Begin to compile, unless the library is there; False if another run still compiles it after `seconds`."""
        if self.path.exists():
            return True
        with _readable_errors(self.path.parent):
            try:
                self._lock.acquire(timeout=seconds)
            except Timeout:
                return False
            if self.path.exists():
                self._lock.release()
                return True
            try:
                self._start_compiler()
            except BaseException:
                self._lock.release()
                raise
        return True

    def _start_compiler(self) -> None:
        folder = Path(tempfile.mkdtemp(dir=self.path.parent, prefix="compiling-"))
        command, output = _command(self._build, folder)
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        script = '"$@" && mv -f "$OUTPUT" "$TARGET"; code=$?; rm -rf "$FOLDER"; exit $code'
        names = {"OUTPUT": str(output), "TARGET": str(self.path), "FOLDER": str(folder)}
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *command],
            env=os.environ | names,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._messages,
            start_new_session=True,  # Ctrl-C is not for it
        )


def _planned(source: Path, flags: tuple[str, ...], macros: dict[str, int]) -> tuple[_Build, Path]:
    """Return how a file is compiled, and the path of its library in a folder that only the user may write into."""
    text = source.read_text(encoding="utf-8")
    build = _Build(source.stem, text, source.parent, tuple(sorted(macros.items())), flags)
    try:
        folder = cache_dir() / "kernels"
    except ConfigError as error:  # no home directory
        raise KernelError(str(error)) from None
    built = folder / f"{build.name}-{_digest(build)}.so"
    with _readable_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _others_may_write(folder):
            raise KernelError(
                f"cache folder {folder}: others can write to it, and files in it are executed; set FEDLOOM_CACHE to a "
                "folder of your own"
            )
        if _is_foreign(built):
            raise KernelError(f"{built}: another user has made it, and it would be run; delete it")
    return build, built


@contextlib.contextmanager
def _readable_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KernelError(
            f"cache folder {folder}: cannot be written ({error.strerror}); set FEDLOOM_CACHE to one that can"
        ) from None


def _others_may_write(folder: Path) -> bool:
    status = folder.stat()
    return os.name == "posix" and (status.st_uid != os.getuid() or bool(status.st_mode & 0o022))


def _is_foreign(built: Path) -> bool:
    """Whether a library is there that another user has made, while the folder was open to others."""
    return os.name == "posix" and os.path.lexists(built) and built.lstat().st_uid != os.getuid()


def _command(build: _Build, folder: Path) -> tuple[list[str], Path]:
    """Return the compiler's command for the source, which is written into `folder`, and the path of its output."""
    if (path := compiler()) is None:
        raise KernelError(
            f"{build.name}.cpp needs a C++ compiler, and there is none; install g++ or clang++, name one in $CXX, or "
            "take engine.kernels: torch"
        )
    source, output = folder / f"{build.name}.cpp", folder / f"{build.name}.so"
    source.write_text(build.text, encoding="utf-8")
    definitions = [f"-D{macro}={value}" for macro, value in build.macros]
    folders = [f"-I{build.folder_of_source}", f"-I{KERNELS_FOLDER}"]
    return [path, *definitions, *folders, "-o", str(output), str(source), *build.flags], output


def _failure(build: _Build, messages: str, code: int) -> KernelError:
    """An error with a compiler's first message in one line."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    message = next((line for line in lines if "error" in line), lines[-1] if lines else "it says nothing")
    geometry = f" with {dict(build.macros)}" if build.macros else ""
    return KernelError(f"{compiler()} could not compile {build.name}.cpp{geometry}: {message} (exit code {code})")


@cache
def _digest(build: _Build) -> str:
    """Return a digest of all that the library depends on; machines of several kinds may share a home folder."""
    folders = (build.folder_of_source, KERNELS_FOLDER)
    headers = [path.read_bytes() for folder in folders for path in sorted(folder.glob("*.h"))]
    facts = repr((build.macros, build.flags, _compiler_version(), _processor())).encode()
    return hashlib.sha256(b"\0".join([build.text.encode(), *headers, facts])).hexdigest()[:24]


@cache
def _compiler_version() -> str:
    """Return the compiler and its version, because another one may sum in another order."""
    if (path := compiler()) is None:
        return ""
    command, seconds = [path, "--version"], _VERSION_SECONDS
    try:
        return subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=seconds, text=True, errors="replace"
        ).stdout
    except subprocess.TimeoutExpired:
        raise KernelError(
            f"{path}: did not report its version within {seconds:g} s; name another C++ compiler in $CXX, or set "
            "FEDLOOM_NO_COMPILER=1"
        ) from None
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
