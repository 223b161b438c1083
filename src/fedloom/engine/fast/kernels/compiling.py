"""Compile C++ sources to libraries for this processor on first use, and cache them."""

import contextlib
import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError, FedloomError
from fedloom.core.files import cache_dir

KERNELS_FOLDER = Path(__file__).parent
_VERSION_SECONDS = 30.0  # for a compiler to tell its version
_LOCK_SECONDS = 0.5  # between two looks whether another run has compiled a library
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fno-math-errno", "-fopenmp-simd")


class KernelError(FedloomError):
    """The config needs own kernels, and they cannot be compiled here."""


@cache
def compiler() -> str | None:
    """Return the C++ compiler: $CXX, else c++, g++ or clang++; None without one, or if FEDLOOM_NO_COMPILER=1."""
    if os.environ.get("FEDLOOM_NO_COMPILER", "0") not in ("", "0") or os.name != "posix":
        return None
    named = os.environ.get("CXX", "")
    if os.path.lexists(named) and shutil.which(named) is None:
        return named  # whoever runs it says that it is no program: another one is not taken in silence
    return next((path for name in (named, "c++", "g++", "clang++") if name and (path := shutil.which(name))), None)


def library(source: Path, **macros: int) -> ctypes.CDLL:
    """Return a C++ file compiled with `macros`. It may include headers of this folder and of the file's."""
    compilation = Compilation(source, FLAGS, macros)
    compilation.finished(wait=True)
    try:
        return ctypes.CDLL(str(compilation.path))
    except OSError as error:
        remedy = "delete it, or name another compiler in $CXX"
        raise KernelError(f"{compilation.path}: cannot be loaded ({error}); {remedy}") from None


class Compilation:
    """A library in the cache, which a separate process compiles in the background if it is not there. That process
    continues if this one ends, and holds a lock until then: other runs wait for it, and start no further compiler. No
    pipe connects the two processes, because workers that are forked meanwhile would keep it open. The library is at
    `path` once `finished` has returned True. Raises `KernelError` for an obstacle that shows before the compiler runs,
    e.g. if others may write into the cache."""

    def __init__(self, source: Path, flags: tuple[str, ...], macros: Mapping[str, int] | None = None) -> None:
        self._source, self._flags, self._macros = source, flags, dict(sorted((macros or {}).items()))
        self._text = source.read_text(encoding="utf-8")
        try:
            folder = cache_dir() / "kernels"
        except ConfigError as error:  # no home directory
            raise KernelError(str(error)) from None
        self.path = folder / f"{source.stem}-{self._digest()}.so"
        with _readable_errors(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _others_may_write(folder):
                raise KernelError(
                    f"cache folder {folder}: others can write to it, and files in it are executed; set FEDLOOM_CACHE "
                    "to a folder of your own"
                )
            if os.name == "posix" and os.path.lexists(self.path) and self.path.lstat().st_uid != os.getuid():
                # it may date from a time when the folder was open to others
                raise KernelError(f"{self.path}: another user has made it, and it would be run; delete it")
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._begin()

    def finished(self, *, wait: bool = False) -> bool:
        """Return whether the library is there; with `wait`, wait until it is. Raises `KernelError` if that fails."""
        if os.getpid() != self._owner:  # a worker, forked meanwhile
            return self.path.exists()
        while self._process is None and not self._begin() and wait:
            time.sleep(_LOCK_SECONDS)
        process = self._process
        code = None if process is None else process.wait() if wait else process.poll()
        if code is not None:
            self._process = None
            with self._messages as file:
                file.seek(0)
                messages = file.read().decode(errors="replace")
            if code or not self.path.exists():
                raise self._failure(messages, code)
        return self.path.exists()

    def _begin(self) -> bool:
        """Begin to compile, unless the library is there; False if a compiler is at work on it already."""
        if self.path.exists():
            return True
        import fcntl  # which Windows lacks

        lock = Path(f"{self.path}.lock")
        with _readable_errors(self.path.parent), lock.open("wb") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            try:
                if not self.path.exists():
                    self._start_compiler(held.fileno())
            finally:
                if self._process is None:
                    lock.unlink(missing_ok=True)
        return True

    def _start_compiler(self, lock: int) -> None:
        if (program := compiler()) is None:
            remedy = "install g++ or clang++, name one in $CXX, or take engine.kernels: torch"
            raise KernelError(f"{self._source.name} needs a C++ compiler, and there is none; {remedy}")
        folder = Path(tempfile.mkdtemp(dir=self.path.parent, prefix="compiling-"))
        source, output = folder / self._source.name, folder / f"{self._source.stem}.so"
        source.write_text(self._text, encoding="utf-8")
        definitions = [f"-D{macro}={value}" for macro, value in self._macros.items()]
        folders = [f"-I{self._source.parent}", f"-I{KERNELS_FOLDER}"]
        command = [program, *definitions, *folders, "-o", str(output), str(source), *self._flags]
        self._messages: Any = tempfile.TemporaryFile()  # noqa: SIM115
        # the library is moved to its place at once, because another process may look for it
        script = '"$@" && mv -f "$OUTPUT" "$TARGET"; code=$?; rm -rf "$FOLDER" "$TARGET.lock"; exit $code'
        names = {"OUTPUT": str(output), "TARGET": str(self.path), "FOLDER": str(folder)}
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *command],
            env=os.environ | names,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._messages,
            pass_fds=(lock,),  # the lock lasts until the last process that has it open ends
            start_new_session=True,  # Ctrl-C is not for it
        )

    def _failure(self, messages: str, code: int) -> KernelError:
        lines = [line.strip() for line in messages.splitlines() if line.strip()]
        message = next((line for line in lines if "error" in line), lines[-1] if lines else "it says nothing")
        geometry = f" with {self._macros}" if self._macros else ""
        problem = f"{message} (exit code {code})"
        return KernelError(f"{compiler()} could not compile {self._source.name}{geometry}: {problem}")

    def _digest(self) -> str:
        """A digest of all that the library depends on; machines of several kinds may share a home folder."""
        headers = [path.read_bytes() for at in (self._source.parent, KERNELS_FOLDER) for path in sorted(at.glob("*.h"))]
        facts = repr((tuple(self._macros.items()), self._flags, _compiler_version(), _processor())).encode()
        return hashlib.sha256(b"\0".join([self._text.encode(), *headers, facts])).hexdigest()[:24]


@contextlib.contextmanager
def _readable_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "set FEDLOOM_CACHE to one that can"
        raise KernelError(f"cache folder {folder}: cannot be written ({error.strerror}); {remedy}") from None


def _others_may_write(folder: Path) -> bool:
    status = folder.stat()
    return os.name == "posix" and (status.st_uid != os.getuid() or bool(status.st_mode & 0o022))


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
        remedy = "name another C++ compiler in $CXX, or set FEDLOOM_NO_COMPILER=1"
        raise KernelError(f"{path}: did not report its version within {seconds:g} s; {remedy}") from None
    except OSError as error:
        raise KernelError(f"{path}: cannot be run ({error.strerror}); name a C++ compiler in $CXX") from None


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    facts = {line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join(sorted(facts))
