"""The kernels as operators of torch, which recordings can contain, and their gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fedloom.engine.fast.kernels.compiling import KERNELS_FOLDER, library

_CALLS = torch.ops.fedloom


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]) -> Tensor:
    """Compute `torch.conv2d` at stride 1 of x [n, c_in, h, w], weight [c_out, c_in, kh, kw] and bias [c_out].

    All are float32 on the CPU. padding: rows and columns, in pixels.
    """
    result: Tensor = _Convolution.apply(x, weight, bias, padding)  # type: ignore[no-untyped-call]
    return result


def max_pool2(x: Tensor) -> Tensor:
    """Compute `torch.max_pool2d(x, 2)` bit for bit, for x [n, c, h, w] in float32 on the CPU."""
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


# -- the operators -----------------------------------------------------------------------------------------------------


@cache
def _compiled_convolution(*geometry: int) -> ctypes.CDLL:
    names = ("C_IN", "C_OUT", "HEIGHT", "WIDTH", "K_HEIGHT", "K_WIDTH", "PAD_Y", "PAD_X")
    kernel = library(KERNELS_FOLDER / "convolution.cpp", **dict(zip(names, geometry, strict=True)))
    kernel.forward.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int]
    kernel.input_gradient.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int]
    kernel.weight_gradient.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int]
    return kernel


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, pad_y: int, pad_x: int) -> Tensor:
    x, weight = x.contiguous(), weight.contiguous()
    n, c_in, height, width = x.shape
    c_out, _, k_height, k_width = weight.shape
    y = x.new_empty((n, c_out, height + 2 * pad_y - k_height + 1, width + 2 * pad_x - k_width + 1))
    kernel = _compiled_convolution(c_in, c_out, height, width, k_height, k_width, pad_y, pad_x)
    bias_pointer = None if bias is None else bias.data_ptr()
    kernel.forward(x.data_ptr(), weight.data_ptr(), bias_pointer, y.data_ptr(), n)
    return y


def _convolution_input(g: Tensor, weight: Tensor, pad_y: int, pad_x: int) -> Tensor:
    g, weight = g.contiguous(), weight.contiguous()
    c_out, c_in, k_height, k_width = weight.shape
    height, width = g.shape[2] - 2 * pad_y + k_height - 1, g.shape[3] - 2 * pad_x + k_width - 1
    gx = g.new_empty((len(g), c_in, height, width))
    kernel = _compiled_convolution(c_in, c_out, height, width, k_height, k_width, pad_y, pad_x)
    kernel.input_gradient(g.data_ptr(), weight.data_ptr(), gx.data_ptr(), len(g))
    return gx


def _convolution_weight(
    g: Tensor, x: Tensor, k_height: int, k_width: int, pad_y: int, pad_x: int
) -> tuple[Tensor, Tensor]:
    g, x = g.contiguous(), x.contiguous()
    n, c_in, height, width = x.shape
    c_out = g.shape[1]
    gw, gb = g.new_empty((c_out, c_in, k_height, k_width)), g.new_empty(c_out)
    kernel = _compiled_convolution(c_in, c_out, height, width, k_height, k_width, pad_y, pad_x)
    kernel.weight_gradient(g.data_ptr(), x.data_ptr(), gw.data_ptr(), gb.data_ptr(), n)
    return gw, gb


@cache
def _compiled_pooling(height: int, width: int) -> ctypes.CDLL:
    kernel = library(KERNELS_FOLDER / "pooling.cpp", HEIGHT=height, WIDTH=width)
    for function in (kernel.forward, kernel.backward):
        function.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_ssize_t]
    return kernel


def _max_pool2(x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    n, channels, height, width = x.shape
    y = x.new_empty((n, channels, height // 2, width // 2))
    argmax = torch.empty_like(y, dtype=torch.int32)
    _compiled_pooling(height, width).forward(x.data_ptr(), y.data_ptr(), argmax.data_ptr(), n * channels)
    return y, argmax


def _max_pool2_backward(g: Tensor, argmax: Tensor, height: int, width: int) -> Tensor:
    g = g.contiguous()
    gx = g.new_empty((*g.shape[:2], height, width))
    _compiled_pooling(height, width).backward(g.data_ptr(), argmax.data_ptr(), gx.data_ptr(), g.shape[0] * g.shape[1])
    return gx


_KERNELS: dict[str, Callable[..., Any]] = {
    "convolution(Tensor x, Tensor weight, Tensor? bias, int pad_y, int pad_x) -> Tensor": _convolution,
    "convolution_input(Tensor g, Tensor weight, int pad_y, int pad_x) -> Tensor": _convolution_input,
    "convolution_weight(Tensor g, Tensor x, int k_height, int k_width, int pad_y, int pad_x) -> (Tensor, Tensor)": (
        _convolution_weight
    ),
    "max_pool2(Tensor x) -> (Tensor, Tensor)": _max_pool2,
    "max_pool2_backward(Tensor g, Tensor argmax, int height, int width) -> Tensor": _max_pool2_backward,
}
# torch removes the operators when this object is deleted
_OPERATORS = torch.library.Library("fedloom", "DEF")  # type: ignore[no-untyped-call]
for _schema, _kernel in _KERNELS.items():
    _OPERATORS.define(_schema)  # type: ignore[no-untyped-call]
    _OPERATORS.impl(_schema.partition("(")[0], _kernel, "CPU")  # type: ignore[no-untyped-call]
