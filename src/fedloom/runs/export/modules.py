"""Make modules with trained weights, from a method's predictor or from an exported file."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from torch import nn

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.core.text import ACCURACY
from fedloom.core.trees import Tree
from fedloom.evaluation.metric import METRICS
from fedloom.methods import METHODS, Method
from fedloom.methods.contract.contexts import ServerContext, Task
from fedloom.methods.contract.phases import Predictor, plain_logits
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.frozen_parameters import unfreeze_buffers
from fedloom.nets.net import MODELS, Net
from fedloom.nets.prediction_module import PredictionModule, load_tree, restore_head_bias
from fedloom.nets.roles import EXTRA
from fedloom.nets.user_model import ModelSource, UserModel
from fedloom.runs.config.model_key import UserModelConfig
from fedloom.runs.config.run_config import RunConfig, parse
from fedloom.runs.export.metadata import ExportMetadata

OwnModel: TypeAlias = ModelSource | Sequence[ModelSource]
"""A module of the user's, or what makes one; several where a run was given a list."""


def config_of(resolved: Mapping[str, Any], user_model: OwnModel | None) -> RunConfig:
    """Return the config that `resolved` describes, with `user_model` as each model that was passed as a Python object.

    Raises `ConfigError` if a model is missing.
    """
    named = resolved.get("model")
    words: list[Any] = list(named) if isinstance(named, list) else [named]
    places = [number for number, word in enumerate(words) if isinstance(word, Mapping) and word.get("name") == "given"]
    sources = [] if user_model is None else list(user_model) if isinstance(user_model, Sequence) else [user_model]
    if len(sources) != len(places):
        had = ", ".join(str(words[number].get("module")) for number in places) or "none, but a registered one"
        raise ConfigError(
            f"this run's models from Python: {had}; pass these or their factories to fedloom.load(..., model=...), or "
            "their name to a command, --model FILE.py:NAME"
        )
    for number, source in zip(places, sources, strict=True):
        words[number] = UserModelConfig.model_validate({**words[number], "user_model": UserModel(source)})
    return _parsed_without_metrics({**resolved, "model": words if isinstance(named, list) else words[0]})


def _parsed_without_metrics(resolved: Mapping[str, Any]) -> RunConfig:
    """Return a finished run's config, whose metrics may be functions of a script that this process has not run."""
    evaluation = dict(resolved.get("evaluation", {}))
    metrics, select_by = tuple(evaluation.get("metrics", ())), evaluation.get("select_by", ACCURACY.name)
    if all(name in METRICS for name in (*metrics, select_by)):
        return parse(resolved)
    evaluation["metrics"] = [name for name in metrics if name in METRICS]
    evaluation["select_by"] = select_by if select_by in METRICS else ACCURACY.name
    config = parse({**resolved, "evaluation": evaluation})
    recorded = {"metrics": metrics, "select_by": select_by}  # which the fingerprint needs
    return config.model_copy(update={"evaluation": config.evaluation.model_copy(update=recorded)})


@contextlib.contextmanager
def packages_named(model: str) -> Iterator[None]:
    """Raise `ConfigError` if the model needs a package that is not installed."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"model {model} needs a package that is not installed: {error}") from None


def module_of(
    net: Net, predictor: Predictor, blueprint: Blueprint, method: Method
) -> tuple[nn.Module, Literal["model", "method"]]:
    """Return the predictor as a module in evaluation mode, made of `net`: the plain model, or a method's prediction."""
    load_tree(net, predictor.tree)
    unfreeze_buffers(net)
    if not blueprint.head_bias:
        restore_head_bias(net, dataclasses.replace(blueprint, head_bias=True).build(Streams(0)))
    net.eval()
    if predictor.logits is not plain_logits or method.spec.nets:
        return PredictionModule(net, predictor.logits).eval(), "method"
    if EXTRA in net._modules:
        del net.extra
    return net.original_module.eval(), "model"


def module_of_metadata(metadata: ExportMetadata, tree: Tree, user_model: OwnModel | None) -> nn.Module:
    """Return the module that `metadata` describes, with the weights `tree`, in evaluation mode.

    Args:
        metadata: describes the module.
        tree: the weights.
        user_model: the user's module or its factory, if the run was given one.

    Raises `ConfigError` if it is missing and for models that are not registered, `RunFolderError` for weights that do
    not fit.
    """
    if user_model is not None and (isinstance(user_model, Sequence) or not metadata.architecture.given):
        raise ConfigError(
            f"model: {metadata.weights} fits the {metadata.architecture.model} of its .json; one module at most"
        )
    with packages_named(metadata.architecture.model):
        module = (
            _plain(metadata, user_model)
            if metadata.architecture.forward == "model"
            else _of_method(metadata, user_model)
        )
    try:
        module.load_state_dict(tree)
    except RuntimeError as error:
        why = " ".join(str(error).split())[:200]
        raise RunFolderError(f"{metadata.weights or 'weights'}: do not fit {type(module).__name__}: {why}") from None
    return module.eval()


def _blueprint(metadata: ExportMetadata, user_model: ModelSource | None, **options: Any) -> Blueprint:
    name, is_user_model = metadata.architecture.model, metadata.architecture.given
    if is_user_model and user_model is None:
        raise ConfigError(
            f"{metadata.weights} needs your {name}: pass it or its factory, fedloom.load(..., model=...), or "
            "--model FILE.py:NAME"
        )
    if not is_user_model and name not in MODELS:
        raise ConfigError(f"model '{name}' is not registered here: import the module that registers it")
    make = None if user_model is None else UserModel(user_model)
    return Blueprint(
        name, metadata.input.shape, len(metadata.classes), metadata.architecture.options, factory=make, **options
    )


def _plain(metadata: ExportMetadata, user_model: ModelSource | None) -> nn.Module:
    net = _blueprint(metadata, user_model).build(Streams(0))
    unfreeze_buffers(net)
    return net.original_module


def _of_method(metadata: ExportMetadata, user_model: ModelSource | None) -> nn.Module:
    """Return a module that predicts as the method does, with a state made of the weights alone."""
    training = metadata.training
    method = METHODS.get(training.method).configured(training.preset, training.options)
    spec = method.spec
    blueprint = _blueprint(metadata, user_model, head_bias=spec.head_bias, nets=spec.nets, extra=method.extra)
    net = blueprint.build(Streams(0))
    facts = {"clients": training.clients, "num_classes": len(metadata.classes), "rounds": training.rounds}
    task = Task.of(net, **facts, local_epochs=1, streams=Streams(training.seed), blueprint=blueprint)
    private = method.private_names(task)
    server: Record = {"model": {name: value for name, value in task.init.items() if name not in private}}
    state: Record = {"model": {name: value for name, value in task.init.items() if name in private}}
    held, kind = (None, "global") if training.client is None else (state, "personal")
    client = -1 if training.client is None else training.client
    offered = method.predictors(server, held, ServerContext(task, training.round, net.functional, client=client))
    return module_of(net, offered[kind], blueprint, method)[0]
