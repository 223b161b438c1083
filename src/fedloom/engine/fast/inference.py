"""Operators of tests on the CPU, computed in another way with the same bits.

torch finds the maxima of images one by one, to know where they are, and computes batch norm in channels-last order one
vector of channels at a time, though a LeNet has six. So these operators take two thirds of a LeNet's test. No compiler
is needed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedloom.engine.fast.kernels.native import Sides, is_two_by_two

_LARGEST_VECTOR = 16  # float32 numbers in a vector of any processor


class InferenceKernels(TorchFunctionMode):
    """A context in which operators that need no gradient are computed faster, bit for bit as by torch."""

    @staticmethod
    def speeds_up(net: nn.Module) -> bool:
        """Return whether `net` may have such operators."""
        return any(isinstance(module, nn.Conv2d) for module in net.modules())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kernel = None if torch.is_grad_enabled() else _KERNELS.get(func)
        if kernel is not None and (result := kernel(*args, **(kwargs or {}))) is not None:
            return result
        return func(*args, **(kwargs or {}))


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """Compute `functional.batch_norm` with stored statistics; return None if torch shall compute it.

    Neighbours in the image become further channels, so that vectors are full.
    """
    if training or running_mean is None or running_var is None or weight is None or bias is None:
        return None
    if not _is_image(input) or not input.is_contiguous(memory_format=torch.channels_last):
        return None
    channels, copies = input.shape[1], math.gcd(input.numel() // max(1, input.shape[1]), _LARGEST_VECTOR)
    if input.is_contiguous() or channels % _LARGEST_VECTOR == 0 or copies < 2 or not _is_exact():
        return None
    return _batch_norm_of_neighbours(input, copies, running_mean, running_var, weight, bias, eps)


def _batch_norm_of_neighbours(x: Tensor, copies: int, *arguments: Any) -> Tensor:
    *vectors, eps = arguments
    n, channels, height, width = x.shape
    rows = x.permute(0, 2, 3, 1).reshape(-1, channels * copies)
    mean, variance, weight, bias = (vector.repeat(copies) for vector in vectors)
    y = functional.batch_norm(rows, mean, variance, weight, bias, eps=eps)
    return y.view(n, height, width, channels).permute(0, 3, 1, 2)


@cache
def _is_exact() -> bool:
    """Return whether batch norm of neighbours has the bits of torch's on this processor."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 8, 8, generator=draw).to(memory_format=torch.channels_last)
    mean, variance, weight, bias = torch.rand(4, 6, generator=draw)
    with torch.no_grad():
        expected = functional.batch_norm(x, mean, variance, weight, bias)
        return torch.equal(_batch_norm_of_neighbours(x, 16, mean, variance, weight, bias, 1e-5), expected)


def _max_pool2d(
    input: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    dilation: Sides = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """Compute `torch.max_pool2d` of 2x2 windows; return None if torch shall compute it."""
    if not is_two_by_two(kernel_size, stride, padding, dilation) or ceil_mode or return_indices:
        return None
    if not _is_image(input) or min(input.shape[2:]) < 2:
        return None
    height, width = (side // 2 * 2 for side in input.shape[2:])
    x = input[:, :, :height, :width]
    rows = torch.maximum(x[:, :, 0::2], x[:, :, 1::2])
    return torch.maximum(rows[..., 0::2], rows[..., 1::2])


def _is_image(x: Tensor) -> bool:
    return x.dim() == 4 and x.dtype == torch.float32 and x.device.type == "cpu"


_KERNELS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    functional.batch_norm: _batch_norm,
    torch.max_pool2d: _max_pool2d,
    functional.max_pool2d: _max_pool2d,
}
