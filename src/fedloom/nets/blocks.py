"""Pieces that several nets share: shape checks, convolution with batch norm, blocks of linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from fedloom.core.errors import ConfigError


def image_shape(model: str, input_shape: tuple[int, ...], *, at_least: int) -> tuple[int, int, int]:
    """`input_shape` as (channels, height, width). Raises `ConfigError` unless both sides have `at_least` pixels."""
    if len(input_shape) != 3 or min(input_shape) < 1 or min(input_shape[1:]) < at_least:
        raise ConfigError(
            f"{model} needs images [c, h, w] of at least {at_least}x{at_least} pixels, got {tuple(input_shape)}"
            + suited(input_shape)
        )
    channels, height, width = input_shape
    return channels, height, width


def suited(input_shape: tuple[int, ...]) -> str:
    """The end of a message to those who gave a net for images features [d]; empty for other shapes."""
    return "; take the model mlp for features, or bilstm for token ids" if len(input_shape) == 1 else ""


def conv_bn(
    before: int,
    after: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    bias: bool = False,
) -> nn.Sequential:
    """A convolution, then batch norm. `padding` is half the kernel unless given, so that stride 1 keeps the size."""
    padding = kernel // 2 if padding is None else padding
    conv = nn.Conv2d(before, after, kernel, stride, padding, groups=groups, bias=bias)
    return nn.Sequential(conv, nn.BatchNorm2d(after))


def dense(widths: Sequence[int], *, batch_norm: bool = False, last_relu: bool = True) -> nn.Sequential:
    """Linear layers `widths[0] -> widths[1] -> ...`, each with [batch norm and] a ReLU; the last ReLU is optional."""
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        norm = [nn.BatchNorm1d(after)] if batch_norm else []
        layers += [nn.Linear(before, after), *norm, nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))
