"""A function of tensors as a CUDA graph: all its kernels in one launch.

A small net's step is a hundred kernels of a few microseconds each, and their launches take longer than they do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import torch
from torch import Tensor

# What runs again, and the memory of its results.
Replay: TypeAlias = tuple[Callable[[], None], list[Tensor]]
Capture: TypeAlias = Callable[[Callable[[], list[Tensor]]], Replay]
_WARM_UP = 3


class Captured:
    """`function` for tensors of the inputs' layouts, on memory of its own: inputs are copied in, what it writes into
    them is copied back, and what it returns is copied out, so that no call meets the memory of another.

    Raises whatever `function` or its capture raises, e.g. where it waits for a value.
    """

    def __init__(
        self, function: Callable[..., list[Tensor]], inputs: Sequence[Tensor], capture: Capture | None = None
    ) -> None:
        self._inputs = [tensor.detach().clone() for tensor in inputs]
        versions = [tensor._version for tensor in self._inputs]

        with torch.cuda.device(inputs[0].device) if inputs[0].is_cuda else nullcontext():
            self._replay, self._outputs = (capture or _cuda_graph)(lambda: function(*self._inputs))
        before = zip(self._inputs, versions, strict=True)
        self._written = [place for place, (tensor, version) in enumerate(before) if tensor._version != version]

    def __call__(self, *inputs: Tensor) -> list[Tensor]:
        torch._foreach_copy_(self._inputs, list(inputs))
        self._replay()
        for place in self._written:
            inputs[place].copy_(self._inputs[place])
        return [output.clone() for output in self._outputs]


def _cuda_graph(run: Callable[[], list[Tensor]]) -> Replay:
    """`run` captured, after some runs beside the stream on which everything else waits, as torch asks for."""
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(_WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=_pool()):
        outputs = run()
    return graph.replay, outputs


@functools.cache
def _pool() -> Any:
    """Memory that all graphs share: they run one after another, and what they return is copied out at once."""
    return torch.cuda.graph_pool_handle()
