"""Shape checks, layers and options that several nets share."""

from collections.abc import Callable, Sequence
from functools import cache
from inspect import Parameter, signature
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field
from pydantic.fields import FieldInfo
from torch import nn

from fedloom.core.errors import ConfigError
from fedloom.nets.net import MODELS


def image_shape(model: str, input_shape: tuple[int, ...], *, min_pixels: int) -> tuple[int, int, int]:
    """Return `input_shape` as (channels, height, width). Raises `ConfigError`, in the name of `model`, for other shapes
    and for images with a side shorter than `min_pixels`."""
    if len(input_shape) != 3 or min(input_shape) < 1 or min(input_shape[1:]) < min_pixels:
        raise ConfigError(
            f"{model} needs images [c, h, w] of at least {min_pixels}x{min_pixels} pixels, got {tuple(input_shape)}"
            + ("; take the model mlp for features, or bilstm for token ids" if len(input_shape) == 1 else "")
        )
    channels, height, width = input_shape
    return channels, height, width


def conv_bn(
    in_channels: int, out_channels: int, kernel: int, *, padding: int | None = None, bias: bool = False, **options: Any
) -> nn.Sequential:
    """Return a convolution from in_channels to out_channels with a square `kernel`, and batch norm. `padding` None
    keeps the size at stride 1. `options`, stride and groups, are those of `nn.Conv2d`."""
    padding = kernel // 2 if padding is None else padding
    conv = nn.Conv2d(in_channels, out_channels, kernel, padding=padding, bias=bias, **options)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels))


def dense(widths: Sequence[int], *, batch_norm: bool = False, last_relu: bool = True) -> nn.Sequential:
    """Return linear layers `widths[0] -> widths[1] -> ...`, each followed by batch norm (if `batch_norm`) and a ReLU;
    the last has none if `last_relu` is False."""
    layers: list[nn.Module] = []
    for in_width, out_width in pairwise(widths):
        norm = [nn.BatchNorm1d(out_width)] if batch_norm else []
        layers += [nn.Linear(in_width, out_width), *norm, nn.ReLU()]
    return nn.Sequential(*(layers if last_relu else layers[:-1]))


_SHAPES = {"input_shape", "num_classes"}  # arguments of every model that come from the data

HeadBias = Annotated[bool, Field(description="Whether the last linear layer has a bias; FedDW's models have none.")]
FcNorm = Annotated[
    bool,
    Field(description="Whether the linear layers below the head have batch norm; FedPer, FedRoD and MOON have none."),
]


def model_options(model: str) -> dict[str, FieldInfo]:
    """Return the options of a registered model by name. Raises `ConfigError` for an unknown model."""
    return dict(_options_of(MODELS.get(model)))


@cache  # every config asks for them
def _options_of(factory: Callable[..., Any]) -> dict[str, FieldInfo]:
    try:
        parameters = signature(factory, eval_str=True).parameters
    except NameError:  # annotations that only a type checker can read
        parameters = signature(factory).parameters
    return {name: _field_of(parameter) for name, parameter in parameters.items() if name not in _SHAPES}


def _field_of(parameter: Parameter) -> FieldInfo:
    annotation = parameter.annotation
    if annotation is Parameter.empty or isinstance(annotation, str):
        annotation = Any
    if parameter.default is Parameter.empty:
        return FieldInfo.from_annotation(annotation)
    return FieldInfo.from_annotated_attribute(annotation, parameter.default)
