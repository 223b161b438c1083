"""Operators of torch computed by the project's kernels, with gradients, and operators of tests with torch's bits.

torch finds the maxima of images one by one, to know where they are, and computes batch norm in channels-last order one
vector of channels at a time, though a LeNet has six. The two take two thirds of a LeNet's test. `InferenceKernels`
computes them faster, and needs no compiler for it."""

import ctypes
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.utils import _pair as pair
from torch.overrides import TorchFunctionMode

from fedloom.engine.fast.kernels.compiling import KERNELS_FOLDER, KernelError, compiler, library

_CALLS = torch.ops.fedloom


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """Compute `torch.conv2d` at stride 1, in float32 on the CPU, of x [n, c_in, h, w] with kernels [c_out, c_in, kh,
    kw] and padding (rows, columns)."""
    _prepared_convolution(*x.shape[1:2], len(weight), *x.shape[2:], *weight.shape[2:], *padding)
    result: Tensor = _Convolution.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
    return result


def max_pool2(x: Tensor) -> Tensor:
    """Compute `torch.max_pool2d(x, 2)` bit for bit, for x [n, c, h, w] in float32 on the CPU."""
    _prepared_pooling(*x.shape[2:])
    result: Tensor = _MaxPool2.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.has_bias = padding, bias is not None
        result: Tensor = _CALLS.convolution.default(x, weight, bias, *padding)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = _CALLS.convolution_input.default(g, weight, *ctx.padding)
        if any(ctx.needs_input_grad[1:3]):
            gw, gb = _CALLS.convolution_weight.default(g, x, *weight.shape[2:], *ctx.padding)
        return gx, gw, gb if ctx.has_bias else None, None


class _MaxPool2(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y, argmax = _CALLS.max_pool2.default(x)
        ctx.save_for_backward(argmax)
        ctx.sides = x.shape[2:]
        result: Tensor = y
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        result: Tensor = _CALLS.max_pool2_backward.default(g, *ctx.saved_tensors, *ctx.sides)
        return result


# -- the operators, which `operators.cpp` defines ----------------------------------------------------------------------
@cache
def load_operators() -> None:
    """Compile the operators if need be, and load them. Raises `KernelError` if they cannot be used."""
    from fedloom.engine.fast.torch_library import TorchLibrary  # it imports this package

    operators = TorchLibrary(KERNELS_FOLDER / "operators.cpp")
    if not operators.wait():
        raise KernelError(str(operators.obstacle))


@cache
def _prepared_convolution(*geometry: int) -> ctypes.CDLL:
    names = ("C_IN", "C_OUT", "HEIGHT", "WIDTH", "K_HEIGHT", "K_WIDTH", "PAD_Y", "PAD_X")
    kernel = library(KERNELS_FOLDER / "convolution.cpp", **dict(zip(names, geometry, strict=True)))
    functions = kernel.forward, kernel.input_gradient, kernel.weight_gradient
    _registry().add_convolution(geometry, *map(_address, functions))
    return kernel


@cache
def _prepared_pooling(height: int, width: int) -> ctypes.CDLL:
    kernel = library(KERNELS_FOLDER / "pooling.cpp", HEIGHT=height, WIDTH=width)
    _registry().add_pooling((height, width), _address(kernel.forward), _address(kernel.backward))
    return kernel


def _registry() -> Any:
    load_operators()
    return torch.classes.fedloom.Registry()


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


# -- which calls of torch they take over -------------------------------------------------------------------------------
Sides: TypeAlias = int | tuple[int, int]
# A faster operator has the signature of torch's; it returns None for a call that torch shall compute.
Kernel: TypeAlias = Callable[..., Tensor | None]

# The kernels are faster up to these numbers of channels (`python -m benchmarks kernels`). Sides of the padded image and
# of the window, in pixels, are limited because sums of a row of taps are kept in registers.
MAX_IN_CHANNELS, MAX_OUT_CHANNELS, MAX_SIDE, MAX_WINDOW = 10, 64, 64, 7


def benefits(net: nn.Module) -> bool:
    """Return whether `net` has a convolution for which the kernels are faster."""
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    return any(is_faster(module.in_channels, module.out_channels) for module in convolutions)


def kernels_obstacle(nets: Sequence[nn.Module]) -> str | None:
    """Return why the kernels cannot be used for any of the nets; None if they can."""
    if not any(map(benefits, nets)):
        return "no net has a convolution of so few channels that they are faster"
    if compiler() is None:
        return "there is no C++ compiler (c++, g++, clang++ or $CXX), and they are compiled when first used"
    try:
        library(KERNELS_FOLDER / "pooling.cpp", HEIGHT=2, WIDTH=2)  # the smallest kernel, as a test
        load_operators()
    except KernelError as error:
        return str(error)
    return None


def is_faster(c_in: int, c_out: int) -> bool:
    """Return whether the kernels are at least about as fast as torch for these numbers of channels."""
    return c_in <= MAX_IN_CHANNELS and c_out <= MAX_OUT_CHANNELS


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sides = 1,
    padding: Sides | str = 0,
    dilation: Sides = 1,
    groups: int = 1,
) -> Tensor | None:
    c_out, c_in = weight.shape[:2]
    if isinstance(padding, str) or groups != 1 or not is_faster(c_in, c_out) or not _are_images(input, weight):
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


def _max_pool2d_by(pool: Callable[[Tensor], Tensor]) -> Kernel:
    """A faster `torch.max_pool2d`, for windows that are neighbouring squares of 2x2 pixels."""

    def max_pool2d(
        input: Tensor,
        kernel_size: Sides,
        stride: Sides | None = None,
        padding: Sides = 0,
        dilation: Sides = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor | None:
        windows = (*pair(kernel_size), *pair(stride or kernel_size), *pair(padding), *pair(dilation))
        if windows != (2, 2, 2, 2, 0, 0, 1, 1) or ceil_mode or return_indices:
            return None
        return pool(input) if _are_images(input) and min(input.shape[2:]) > 1 else None

    return max_pool2d


def _are_images(*tensors: Tensor) -> bool:
    return all(t.dim() == 4 and t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)


class OwnKernels(TorchFunctionMode):
    """A context in which the kernels compute the convolutions and poolings for which they are faster."""

    only_without_gradient = False
    kernels: ClassVar[dict[Callable[..., Any], Kernel]] = {
        torch.conv2d: _conv2d,
        **dict.fromkeys([torch.max_pool2d, functional.max_pool2d], _max_pool2d_by(max_pool2)),
    }

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kernel = None if self.only_without_gradient and torch.is_grad_enabled() else self.kernels.get(func)
        if kernel is not None and (result := kernel(*args, **(kwargs or {}))) is not None:
            return result
        return func(*args, **(kwargs or {}))


# -- operators of tests ------------------------------------------------------------------------------------------------
_LARGEST_VECTOR = 16  # float32 numbers in a vector of any processor


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
    """Compute `functional.batch_norm` with stored statistics. Neighbours become channels, so that vectors are full."""
    if training or running_mean is None or running_var is None or weight is None or bias is None:
        return None
    if not _are_images(input) or not input.is_contiguous(memory_format=torch.channels_last):
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


def _maxima(x: Tensor) -> Tensor:
    """The largest numbers of 2x2 windows, without their places, which only gradients need."""
    height, width = (side // 2 * 2 for side in x.shape[2:])
    whole = x[:, :, :height, :width]
    rows = torch.maximum(whole[:, :, 0::2], whole[:, :, 1::2])
    return torch.maximum(rows[..., 0::2], rows[..., 1::2])


class InferenceKernels(OwnKernels):
    """A context in which operators that need no gradient are computed faster, bit for bit as by torch."""

    only_without_gradient = True
    kernels: ClassVar[dict[Callable[..., Any], Kernel]] = {
        functional.batch_norm: _batch_norm,
        **dict.fromkeys([torch.max_pool2d, functional.max_pool2d], _max_pool2d_by(_maxima)),
    }

    @staticmethod
    def speeds_up(net: nn.Module) -> bool:
        return any(isinstance(module, nn.Conv2d) for module in net.modules())
