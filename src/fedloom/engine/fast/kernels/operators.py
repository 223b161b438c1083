"""The kernels as operators of torch, which recordings can contain, and their gradients."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedloom.engine.fast.kernels.compiling import KERNELS_FOLDER, KernelError, library

_CALLS = torch.ops.fedloom


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """Compute `torch.conv2d` at stride 1, in float32 on the CPU.

    Args:
        x: images [n, c_in, h, w].
        weight: kernels [c_out, c_in, kh, kw].
        bias: [c_out].
        padding: rows and columns, in pixels.
    """
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
    """Compile the convolution of a geometry, let the operators use it, and return its library."""
    names = ("C_IN", "C_OUT", "HEIGHT", "WIDTH", "K_HEIGHT", "K_WIDTH", "PAD_Y", "PAD_X")
    kernel = library(KERNELS_FOLDER / "convolution.cpp", **dict(zip(names, geometry, strict=True)))
    functions = kernel.forward, kernel.input_gradient, kernel.weight_gradient
    _registry().add_convolution(geometry, *map(_address, functions))
    return kernel


@cache
def _prepared_pooling(height: int, width: int) -> ctypes.CDLL:
    """Compile the pooling of images of a size, let the operators use it, and return its library."""
    kernel = library(KERNELS_FOLDER / "pooling.cpp", HEIGHT=height, WIDTH=width)
    _registry().add_pooling((height, width), _address(kernel.forward), _address(kernel.backward))
    return kernel


def _registry() -> Any:
    load_operators()
    return torch.classes.fedloom.Registry()


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0
