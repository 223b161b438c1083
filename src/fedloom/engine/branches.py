"""Work of several clients side by side on a GPU, each on a stream of its own.

In a CUDA graph (`engine/captured.py`) they become branches that do not wait for each other. Kernels of one client leave
most of a large GPU idle; `torch.vmap` fills it with larger kernels, branches with more of them at once. Which is faster
depends on the net and on the GPU: it is measured when a step is recorded (`engine/recorded.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")
STREAMS = 16  # more branches than a GPU runs at once only make a longer graph to launch


def side_by_side(work: Callable[[int], T], count: int, device: torch.device) -> list[T]:
    """work(0), work(1), ..., work(count - 1). On the CPU one after another."""
    if device.type != "cuda":
        return [work(place) for place in range(count)]
    joint = torch.cuda.current_stream(device)
    streams = [torch.cuda.Stream(device) for _ in range(min(count, STREAMS))]  # type: ignore[no-untyped-call]
    results = []
    for stream in streams:
        stream.wait_stream(joint)
    for place in range(count):
        with torch.cuda.stream(streams[place % len(streams)]):
            results.append(work(place))
    for stream in streams:
        joint.wait_stream(stream)
    return results
