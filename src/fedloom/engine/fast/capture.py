"""The capture of work as a CUDA graph, and the errors for lack of memory on the way."""

import contextlib
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

# Makes a function that repeats what its argument does. The argument may run several times on the way.
Capture: TypeAlias = Callable[[Callable[[], None]], Callable[[], None]]


class CudaCapture:
    """Captures work as a CUDA graph of a device. This class alone calls `torch.cuda`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run `work` on another stream, so that libraries set themselves up, then capture it."""
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            try:
                # graphs are replayed one after another, so they can share the memory of their intermediate values
                with torch.cuda.graph(graph, pool=self._pool):
                    work()
            except Exception:
                # After a failed capture, older versions of torch still expect the generator to be captured, and plain
                # steps that draw random numbers end with an error. A capture that succeeds repairs this.
                with contextlib.suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
                    torch.zeros(1, device=self._device)
                raise
            self._pool = graph.pool()
            return graph.replay


def says_memory_is_full(error: BaseException | None) -> bool:
    """Return whether an error, or one before it, is for lack of memory: a broken capture may end with another one."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError) and "out of memory" not in str(error):
        error = error.__context__
    return error is not None
