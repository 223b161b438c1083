"""The choice between the project's kernels and torch's, operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair as pair
from torch.overrides import TorchFunctionMode

from fedloom.engine.fast.kernels.operators import convolution, max_pool2

Sides: TypeAlias = int | tuple[int, int]

# The kernels are faster up to these numbers of channels (`python -m benchmarks kernels`). Sides of the padded image and
# of the window, in pixels, are limited because sums of a row of taps are kept in registers.
MAX_IN_CHANNELS, MAX_OUT_CHANNELS, MAX_SIDE, MAX_WINDOW = 10, 64, 64, 7


def benefits(net: nn.Module) -> bool:
    """Return whether `net` has a convolution for which the kernels are faster."""
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    return any(is_faster(module.in_channels, module.out_channels) for module in convolutions)


def is_faster(c_in: int, c_out: int) -> bool:
    """Return whether the kernels are at least about as fast as torch for these numbers of channels."""
    return c_in <= MAX_IN_CHANNELS and c_out <= MAX_OUT_CHANNELS


class OwnKernels(TorchFunctionMode):
    """A context in which the kernels compute the convolutions and poolings for which they are faster."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kernel = _KERNELS.get(func)
        if kernel is not None and (result := kernel(*args, **(kwargs or {}))) is not None:
            return result
        return func(*args, **(kwargs or {}))


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sides = 1,
    padding: Sides | str = 0,
    dilation: Sides = 1,
    groups: int = 1,
) -> Tensor | None:
    """Compute `torch.conv2d`; return None if torch shall compute it."""
    c_out, c_in = weight.shape[:2]
    if isinstance(padding, str) or groups != 1 or not is_faster(c_in, c_out) or not _is_supported(input, weight):
        return None
    if (*pair(stride), *pair(dilation)) != (1, 1, 1, 1) or input.shape[1] != c_in:
        return None
    if bias is not None and (bias.dtype != weight.dtype or bias.shape != (c_out,)):
        return None
    pads = pair(padding)
    sides = zip(input.shape[2:], weight.shape[2:], pads, strict=True)
    for side, kernel, pad in sides:
        if not (pad < kernel <= MAX_WINDOW and kernel <= side + 2 * pad <= MAX_SIDE):
            return None
    return convolution(input, weight, bias, pads)


def _max_pool2d(
    input: Tensor,
    kernel_size: Sides,
    stride: Sides | None = None,
    padding: Sides = 0,
    dilation: Sides = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """Compute `torch.max_pool2d`; return None if torch shall compute it."""
    if not is_two_by_two(kernel_size, stride, padding, dilation) or ceil_mode or return_indices:
        return None
    return max_pool2(input) if _is_supported(input) and min(input.shape[2:]) > 1 else None


def is_two_by_two(kernel_size: Sides, stride: Sides | None, padding: Sides, dilation: Sides) -> bool:
    """Return whether a pooling's windows are neighbouring squares of 2x2 pixels.

    Args:
        kernel_size: sides of a window, in pixels.
        stride: distance of windows, in pixels; None is their size.
        padding: zeros on each side, in pixels.
        dilation: distance of a window's pixels.
    """
    windows = (*pair(kernel_size), *pair(stride or kernel_size), *pair(padding), *pair(dilation))
    return windows == (2, 2, 2, 2, 0, 0, 1, 1)


def _is_supported(*tensors: Tensor) -> bool:
    return all(t.dim() == 4 and t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


_KERNELS: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    torch.conv2d: _conv2d,
    torch.max_pool2d: _max_pool2d,
    functional.max_pool2d: _max_pool2d,
}
