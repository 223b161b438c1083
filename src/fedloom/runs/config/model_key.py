"""The key `model`: a registered model, a group of them, a list, or a model that came as a Python object."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import nn

from fedloom.core.errors import ConfigError, short_repr, suggest_name
from fedloom.core.streams import Streams
from fedloom.data.dataset import Dataset
from fedloom.nets import MODELS
from fedloom.nets.loaded_net import MODEL_GROUPS
from fedloom.nets.net import Net
from fedloom.nets.probe import check_classifies, find_head
from fedloom.nets.user_model import UserModel, class_name, model_digest
from fedloom.runs.config.keys import check_options


class ModelConfig(BaseModel, extra="allow", frozen=True):
    """A model with options: `{name: mlp, hidden: [100]}`."""

    name: str = Field(
        description="Name of a registered model (`fedloom models`); add its options next to this key.", examples=["mlp"]
    )

    @property
    def title(self) -> str:
        return self.name

    @property
    def factory(self) -> UserModel | None:
        """The user's model that makes the nets; None for a registered model."""
        return None

    def options(self) -> dict[str, Any]:
        """Return the options that its factory takes in addition to the shapes."""
        return dict(self.model_extra or {})

    def check(self) -> None:
        if self.name == "given":
            raise ConfigError("model = given: this run used a model from Python; pass it to fedloom.run to continue")
        if self.name not in MODELS:
            problem = suggest_name(self.name, {*MODELS.names(), *MODEL_GROUPS}, "model")
            raise ConfigError(f"unknown model {short_repr(self.name)}: {problem}")
        check_options(self.name, self.options())


class UserModelConfig(ModelConfig, extra="forbid", frozen=True, arbitrary_types_allowed=True):
    """A model that was passed as a Python object, described by these fields. The object itself is stored nowhere."""

    name: Literal["given"] = Field("given", description="Mark of a model from Python.")
    module: str = Field(description="Class of the module.")
    weights: Literal["own", "drawn"] = Field(
        description="Origin of the first weights: `own` are a module's, `drawn` come from a function and the seed."
    )
    head: str | None = Field(description="Name of the last linear layer; null if the model does not end in one.")
    digest: str = Field(
        description="Hash of structure and first weights; weights that a function draws are those of seed 0."
    )
    user_model: UserModel = Field(exclude=True, repr=False, description="Factory of the nets.")

    @staticmethod
    def from_object(source: Any, data: Dataset) -> "UserModelConfig":
        """Describe the user's model `source` for `data`. Raises `ConfigError` for one that does not fit."""
        user_model, shape, classes = UserModel(source), data.input_shape, data.num_classes
        with Streams(0).isolated("init"):
            module = user_model.module(shape, classes)
        x = data.gather(torch.arange(min(2, len(data))))
        check_classifies(module, x, classes, class_name(module))
        return UserModelConfig(
            module=class_name(module),
            weights="own" if isinstance(source, nn.Module) else "drawn",
            head=None if isinstance(module, Net) else find_head(module, x),
            digest=model_digest(module),
            user_model=user_model,
        )

    @property
    def title(self) -> str:
        return self.module

    @property
    def factory(self) -> UserModel:
        return self.user_model

    def options(self) -> dict[str, Any]:
        return {"head": self.head}

    def check(self) -> None:
        """Nothing to check: the user's model was called once when the config was built."""


def model_configs(key: str | ModelConfig | Sequence[str | ModelConfig]) -> list[ModelConfig]:
    """Return the models that the key names, groups replaced by their models."""
    configs: list[ModelConfig] = []
    for model in [key] if isinstance(key, str | ModelConfig) else key:
        names = MODEL_GROUPS.get(model, (model,)) if isinstance(model, str) else ()
        configs += [ModelConfig(name=name) for name in names] or [model]  # type: ignore[list-item]
    return configs


def with_user_models(model: Any, data: Dataset) -> Any:
    """`model` with a `UserModelConfig` in place of each object. Raises what `UserModelConfig.from_object` raises."""
    if _is_list(model):
        return [with_user_models(entry, data) for entry in model]
    return UserModelConfig.from_object(model, data) if is_python_object(model) else model


def is_python_object(model: Any) -> bool:
    """Return whether a value of the key is a Python object, or a list that holds one."""
    if _is_list(model):
        return any(map(is_python_object, model))
    return isinstance(model, nn.Module) or (callable(model) and not isinstance(model, ModelConfig))


def _is_list(model: Any) -> bool:
    return isinstance(model, Sequence) and not isinstance(model, str | Mapping | nn.Module)
