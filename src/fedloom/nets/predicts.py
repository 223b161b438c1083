"""A method's way to predict as a plain module, and the plain module in a net."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedloom.core.trees import Tree
from fedloom.nets.net import Net
from fedloom.nets.roles import EXTRA


class Predicts(nn.Module):
    """`forward(x)` is `logits(net, x)`: x [B, *input_shape] -> class scores [B, C]. Entries are the net's own.

    For methods that predict with several nets, or with what they add to one. Children of a bundle have the names that
    the method gave them ("online.conv1.weight"), and are their authors' modules.
    """

    def __init__(self, net: Net, logits: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self._how = net, logits  # in a tuple: no child, so that entries keep their names
        plain = net.plain
        self._parameters, self._buffers = plain._parameters, plain._buffers
        self._non_persistent_buffers_set = plain._non_persistent_buffers_set
        children = dict(plain._modules) | ({EXTRA: net.extra} if EXTRA in net._modules else {})
        self._modules = {name: child.plain if isinstance(child, Net) else child for name, child in children.items()}
        self.train(net.training)

    def train(self, mode: bool = True) -> Predicts:
        self._how[0].train(mode)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        net, logits = self._how
        return logits(net, x)


def load_tree(net: Net, tree: Tree) -> None:
    """Copy `tree` into the net, strictly; a tree may have more entries than the net."""
    net.load_state_dict({name: tree[name] for name in net.state_dict()})


def with_head_bias(net: Net, own: Net) -> None:
    """Give heads of `net` that a method left without a bias one of zeros, where `own`, the net as it is, has one.

    The function stays the same, and the entries are those of the author's module again.
    """
    for name in own.state_dict().keys() - net.state_dict().keys():
        head = net.get_submodule(name.rpartition(".")[0])
        if isinstance(head, nn.Linear):
            head.register_parameter("bias", nn.Parameter(torch.zeros(head.out_features)))
