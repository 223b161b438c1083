"""Libraries in C++ that use torch: compiled once for each machine, torch and compiler, in the background."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch

from fedloom.core.trees import CompiledAdd, use_compiled_add
from fedloom.engine.fast.kernels.compiling import Compilation, KernelError, compiler

_TORCH = Path(torch.__file__).parent


def _flags() -> tuple[str, ...]:
    """The compiler's options for a library that uses torch. Another version of torch gets another library."""
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    return (
        *("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-ffp-contract=off"),
        *(f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f'-DFEDLOOM_TORCH="{torch.__version__}"'),
        *(f"-I{_TORCH / 'include'}", f"-I{_TORCH / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"),
        *(f"-L{_TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{_TORCH / 'lib'}"),
    )


class TorchLibrary:
    """A C++ file that uses torch, compiled on first use; `TORCH_LIBRARY` in it makes its operators known to torch.
    `obstacle` says why it cannot be used, None while nothing is in its way; `loaded` is called after loading."""

    def __init__(self, source: Path, loaded: Callable[[], None] = lambda: None) -> None:
        self.source, self.obstacle = source, None if compiler() else "there is no C++ compiler"
        self._tell_loaded, self._loaded = loaded, False
        self._compilation: Compilation | None = None

    def wait(self) -> bool:
        self.start()
        return self.ready(wait=True)

    def start(self) -> None:
        """Begin to compile it in the background, unless it is there or was begun."""
        if self._compilation is None and self.obstacle is None:
            try:
                self._compilation = Compilation(self.source, _flags())
            except KernelError as error:
                self.obstacle = str(error)

    def ready(self, *, wait: bool = False) -> bool:
        """Load it if it has been compiled, with `wait` after waiting for that; return whether it can be used now."""
        if self._loaded or self._compilation is None or self.obstacle is not None:
            return self._loaded
        try:
            if self._compilation.finished(wait=wait):
                torch.ops.load_library(str(self._compilation.path))  # type: ignore[no-untyped-call]
                self._loaded = True
                self._tell_loaded()
        except KernelError as error:
            self.obstacle = str(error)
        except OSError as error:
            self.obstacle = f"{self._compilation.path} cannot be loaded ({error}); delete it"
        return self._loaded


@cache
def replay_library() -> TorchLibrary:
    """Return the library that replays steps."""
    return TorchLibrary(Path(__file__).parent / "replay.cpp", _sum_in_cpp)


def _sum_in_cpp() -> None:
    """Let sums over clients be taken in C++ if that has torch's bits on this processor."""
    add = torch.ops.fedloom_replay.add_weighted.default
    if has_bits_of_torch(add):
        use_compiled_add(add)


def has_bits_of_torch(add: CompiledAdd) -> bool:
    """Whether compiled sums of two trees have the bits of `Tensor.add_`, for entries of all lengths up to 70."""
    generator, weights = torch.Generator().manual_seed(0), [math.pi, 1 / 3]
    trees = [[torch.randn(length, generator=generator) for length in range(70)] for _ in weights]
    sums = [torch.zeros(length, dtype=torch.float64) for length in range(70)]
    for tree, weight in zip(trees, weights, strict=True):
        for part, entry in zip(sums, tree, strict=True):
            part.add_(entry, alpha=weight)
    total = torch.zeros(sum(range(70)), dtype=torch.float64)
    return add(total, trees[0] + trees[1], weights) and torch.equal(total, torch.cat(sums))
