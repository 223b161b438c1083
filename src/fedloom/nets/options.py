"""The options of registered models, with their descriptions."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, signature
from typing import Annotated, Any

from pydantic import Field
from pydantic.fields import FieldInfo

from fedloom.nets.net import MODELS

_SHAPES = {"input_shape", "num_classes"}  # arguments of every model that come from the data

HeadBias = Annotated[
    bool,
    Field(description="Whether the last linear layer has a bias; FedDW's models have none."),
]
FcNorm = Annotated[
    bool,
    Field(description="Whether the linear layers below the head have batch norm; FedPer, FedRoD and MOON have none."),
]


def model_options(model: str) -> dict[str, FieldInfo]:
    """Return the options of a registered model by name, each with its type, default and description.

    An option without a type has the type Any. Raises `ConfigError` for an unknown model.
    """
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
