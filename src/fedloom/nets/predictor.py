"""A plain module that predicts as a method does, and loading of trees into nets.

A predictor: weights with the rule by which they predict, which methods offer and protocols test."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from fedloom.core.trees import Tree
from fedloom.nets.net import EXTRA, Net


class PredictionModule(nn.Module):
    """A module whose `forward(x)` is `logits(net, x)` [B, C], for methods that predict with several nets or an added
    module. Its entries are the net's; children of a bundle keep their names, and are their authors' modules."""

    def __init__(self, net: Net, logits: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self._net_and_logits = net, logits  # a tuple, so that the net is no child and entries keep their names
        original = net.original_module
        self._parameters, self._buffers = original._parameters, original._buffers
        self._non_persistent_buffers_set = original._non_persistent_buffers_set
        children = dict(original._modules) | ({EXTRA: net.extra} if EXTRA in net._modules else {})
        self._modules = {
            name: child.original_module if isinstance(child, Net) else child for name, child in children.items()
        }
        self.train(net.training)

    def train(self, mode: bool = True) -> "PredictionModule":
        self._net_and_logits[0].train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        net, logits = self._net_and_logits
        return logits(net, x)


def load_tree(net: Net, tree: Tree) -> None:
    """Copy `tree` into the net. The tree needs every entry of the net, and may have more."""
    net.load_state_dict({name: tree[name] for name in net.state_dict()})


def restore_head_bias(net: Net, reference: Net) -> None:
    """Add a bias of zeros to heads that a method left without one, where the author's net, `reference`, has a bias."""
    for name in reference.state_dict().keys() - net.state_dict().keys():
        head = net.get_submodule(name.rpartition(".")[0])
        if isinstance(head, nn.Linear):
            head.register_parameter("bias", nn.Parameter(torch.zeros(head.out_features)))


def plain_logits(net: Net, x: Tensor) -> Tensor:
    """Return the net's own output [B, C]."""
    return cast(Tensor, net(x))


@dataclass(frozen=True, slots=True)
class Predictor:
    """Weights and how to predict with them.

    Attributes:
        tree: the weights that the net holds.
        logits: maps (net, x) to class scores [B, C].
        consts: constants for the phases of `Method.adapt`.
        labels_only: whether the highest entry of a row names the class and nothing more, as with votes, so that no
            metric of scores is defined.
    """

    tree: Tree
    logits: Callable[[Net, Tensor], Tensor] = plain_logits
    consts: dict[str, Any] = field(default_factory=dict)
    labels_only: bool = False
