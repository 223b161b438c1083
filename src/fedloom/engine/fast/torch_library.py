"""Libraries in C++ that use torch: compiled once for each machine, torch and compiler, in the background."""

from __future__ import annotations

import threading
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedloom.engine.fast.kernels.compiling import KernelError, compiled, compiler

_TORCH = Path(torch.__file__).parent


def torch_flags(*more: str) -> tuple[str, ...]:
    """Return the compiler's options for a library that uses torch's headers and defines operators or classes.

    The version of torch is among them, so that another version has a library of its own. more: further options.
    """
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return (
        *("-std=c++20", "-O2", "-fPIC", "-shared", "-ffp-contract=off"),
        *(f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f'-DFEDLOOM_TORCH="{torch.__version__}"'),
        *(f"-I{_TORCH / 'include'}", f"-I{_TORCH / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"),
        *(f"-L{_TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{_TORCH / 'lib'}"),
        *more,
    )


class TorchLibrary:
    """A C++ file that uses torch, compiled on first use.

    Attributes:
        obstacle: why it cannot be used, in one line; None as long as nothing is in its way.

    Args:
        source: the C++ file; `TORCH_LIBRARY` in it makes what it defines known to torch.
    """

    def __init__(self, source: Path) -> None:
        self.source, self.obstacle = source, None if compiler() else "there is no C++ compiler"
        self._path: Path | None = None
        self._loaded = False
        self._thread: threading.Thread | None = None

    def wait(self) -> bool:
        """Compile and load it, if that has not been done; return whether it can be used."""
        if self.started():
            assert self._thread is not None
            self._thread.join()
        return self.ready()

    def started(self) -> bool:
        """Begin to compile it in the background, if need be. Return whether it is now being compiled or was."""
        if self._thread is None and self.obstacle is None:
            self._thread = threading.Thread(target=self._compile, name="fedloom-compiler")
            self._thread.start()
        return self._thread is not None

    def ready(self) -> bool:
        """Load it if it has been compiled; return whether it can be used now."""
        if not self._loaded and self._path is not None and self.obstacle is None:
            try:
                torch.ops.load_library(str(self._path))  # type: ignore[no-untyped-call]
                self._loaded = True
            except OSError as error:
                self.obstacle = f"{self._path} cannot be loaded ({error}); delete it"
        return self._loaded

    def _compile(self) -> None:
        try:
            self._path = compiled(self.source, torch_flags())
        except KernelError as error:
            self.obstacle = str(error)


@cache
def replay_library() -> TorchLibrary:
    """Return the library that replays steps."""
    return TorchLibrary(Path(__file__).parent / "replay.cpp")


def threads_obstacle() -> str | None:
    """Begin to compile the library that replays steps; return why it cannot be used, or None if it can or will."""
    replay_library().started()
    return replay_library().obstacle


def threads_ready() -> bool:
    """Return whether steps can be replayed now."""
    return replay_library().ready()


def pool(threads: int) -> Any:
    """Return a pool of `threads` threads that run replays, among them the one that waits for results."""
    return torch.classes.fedloom_replay.Pool(threads - 1)
