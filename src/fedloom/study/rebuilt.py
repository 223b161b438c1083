"""Modules with trained weights: out of a method's predictor, and out of what an exported file says."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from torch import nn

from fedloom.core.errors import ConfigError, RunFolderError
from fedloom.core.records import Record
from fedloom.core.streams import Streams
from fedloom.core.trees import Tree
from fedloom.methods import METHODS, Method
from fedloom.methods.facts import ServerContext, Task
from fedloom.methods.phases import Predictor, plain_logits
from fedloom.nets.blueprint import Blueprint
from fedloom.nets.net import MODELS, Net
from fedloom.nets.predicts import Predicts, load_tree, with_head_bias
from fedloom.nets.roles import EXTRA
from fedloom.study.card import Card

OwnModel: TypeAlias = nn.Module | Callable[[], nn.Module]
"""A module of the user's, or what makes one."""


def module_of(
    net: Net, predictor: Predictor, blueprint: Blueprint, method: Method
) -> tuple[nn.Module, Literal["model", "method"]]:
    """The predictor as a module in evaluation mode: the author's own where the net alone predicts ("model"), else one
    that computes what the method does ("method"). `net` is what `blueprint` made, and is used up."""
    load_tree(net, predictor.tree)
    if not blueprint.head_bias:
        with_head_bias(net, dataclasses.replace(blueprint, head_bias=True).build(Streams(0)))
    net.eval()
    if predictor.logits is not plain_logits or method.spec.nets:
        return Predicts(net, predictor.logits).eval(), "method"
    if EXTRA in net._modules:
        del net.extra
    return net.plain.eval(), "model"


def module_of_card(card: Card, tree: Tree, own: OwnModel | None) -> nn.Module:
    """The module that `card` describes, with the weights `tree`, in evaluation mode.

    own: the user's module or factory, where the run was given one. Raises `ConfigError` for a model that is not
    registered here, `RunFolderError` for weights that do not fit.
    """
    alone = card.architecture.forward == "model"
    if own is not None:
        if not alone:
            raise ConfigError(f"model: {card.training.method} predicts with more than one net; load the run folder")
        module = copy.deepcopy(own) if isinstance(own, nn.Module) else own()
    else:
        module = _plain(card) if alone else _of_method(card, tree)
    try:
        module.load_state_dict(tree)
    except RuntimeError as error:
        why = " ".join(str(error).split())[:200]
        raise RunFolderError(f"{card.weights or 'weights'}: do not fit {type(module).__name__}: {why}") from None
    return module.eval()


def _blueprint(card: Card, **more: Any) -> Blueprint:
    name = card.architecture.model
    if name not in MODELS:
        raise ConfigError(
            f"model '{name}' is not registered here: import what registers it, or pass your module or what makes it, "
            "fedloom.load(..., model=...)"
        )
    return Blueprint(name, card.input.shape, len(card.classes), card.architecture.options, **more)


def _plain(card: Card) -> nn.Module:
    return _blueprint(card).build(Streams(0)).plain


def _of_method(card: Card, tree: Tree) -> nn.Module:
    """What computes a method's way to predict, from the state that its weights alone make."""
    training = card.training
    method = METHODS.get(training.method).configured(training.preset, training.options)
    spec = method.spec
    blueprint = _blueprint(card, head_bias=spec.head_bias, nets=spec.nets, extra=method.extra)
    net = blueprint.build(Streams(0))
    facts = {"clients": training.clients, "num_classes": len(card.classes), "rounds": training.rounds}
    task = Task.of(net, **facts, local_epochs=1, streams=Streams(training.seed), blueprint=blueprint)
    private = method.private_names(task)
    server: Record = {"model": {name: value for name, value in task.init.items() if name not in private}}
    state: Record = {"model": {name: value for name, value in task.init.items() if name in private}}
    own, kind = (None, "global") if training.client is None else (state, "personal")
    offered = method.predictors(server, own, ServerContext(task, training.round, net.frozen))
    return module_of(net, offered[kind], blueprint, method)[0]
