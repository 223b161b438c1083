"""Where a net takes the project's kernels instead of torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.utils import _pair as pair
from torch.overrides import TorchFunctionMode

from fedloom.engine.fast.kernels.operators import convolution, max_pool2

_Sides: TypeAlias = int | tuple[int, int]

# Most channels in and out for which these kernels are faster (`benchmarks/kernels.py`), the largest padded image and
# the largest window: sums of a row of taps are kept in registers.
MOST_IN, MOST_OUT, LARGEST, LARGEST_WINDOW = 10, 64, 64, 7


def suited(net: nn.Module) -> bool:
    """Whether `net` has a convolution that can gain."""
    return any(isinstance(part, nn.Conv2d) and gains(part.in_channels, part.out_channels) for part in net.modules())


def gains(c_in: int, c_out: int) -> bool:
    """Whether the kernels are faster for so many channels, or about as fast."""
    return c_in <= MOST_IN and c_out <= MOST_OUT


class OwnKernels(TorchFunctionMode):
    """Within it, convolutions and poolings that the kernels know and are faster at are theirs; all else is torch's."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        own = _OWN.get(func)
        if own is not None and (result := own(*args, **(kwargs or {}))) is not None:
            return result
        return func(*args, **(kwargs or {}))


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Sides = 1,
    padding: _Sides | str = 0,
    dilation: _Sides = 1,
    groups: int = 1,
) -> Tensor | None:
    """`torch.conv2d`, or None if that is to compute it."""
    c_out, c_in = weight.shape[:2]
    if isinstance(padding, str) or groups != 1 or not gains(c_in, c_out) or not _known(input, weight):
        return None
    if (*pair(stride), *pair(dilation)) != (1, 1, 1, 1) or input.shape[1] != c_in:
        return None
    if bias is not None and (bias.dtype != weight.dtype or bias.shape != (c_out,)):
        return None
    pads = pair(padding)
    sides = zip(input.shape[2:], weight.shape[2:], pads, strict=True)
    for side, kernel, pad in sides:
        if not (pad < kernel <= LARGEST_WINDOW and kernel <= side + 2 * pad <= LARGEST):
            return None
    return convolution(input, weight, bias, pads)


def _max_pool2d(
    input: Tensor,
    kernel_size: _Sides,
    stride: _Sides | None = None,
    padding: _Sides = 0,
    dilation: _Sides = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    """`torch.max_pool2d`, or None if that is to compute it."""
    windows = (*pair(kernel_size), *pair(stride or kernel_size), *pair(padding), *pair(dilation))
    if windows != (2, 2, 2, 2, 0, 0, 1, 1) or ceil_mode or return_indices:
        return None
    return max_pool2(input) if _known(input) and min(input.shape[2:]) > 1 else None


def _known(*tensors: Tensor) -> bool:
    return all(t.dim() == 4 and t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


_OWN: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    torch.conv2d: _conv2d,
    torch.max_pool2d: _max_pool2d,
    functional.max_pool2d: _max_pool2d,
}
