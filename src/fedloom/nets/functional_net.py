"""A net as a function of its weights, in evaluation mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.trees import Tree
from fedloom.nets.deep_copy import deep_copy

if TYPE_CHECKING:
    from fedloom.nets.net import Net


class FunctionalNet:
    """A net without weights: every call takes a tree, and computes in evaluation mode.

    Methods use it for teachers, anchors and other clients' classifiers. It holds no weights, and gradients reach only
    the arguments, so pass detached trees. A tree may have more entries than the net.
    `trainable`: names of the entries that train.
    """

    def __init__(self, net: Net) -> None:
        constants = {id(buffer) for module in net.modules() for buffer in _non_persistent_buffers(module)}
        placeholders = {
            id(tensor): _placeholder(tensor)
            for tensor in [*net.parameters(), *net.buffers()]
            if id(tensor) not in constants
        }
        self._net = deep_copy(net, placeholders).eval()
        entries = [*self._net.named_parameters(), *self._net.named_buffers()]
        self._names = {name for name, _ in entries}  # a tensor under several names has the first of them
        self.trainable = frozenset(name for name, _ in self._net.named_parameters())
        self._features = _Features(self._net)
        self._classifier = _Classifier(self._net)

    def logits(self, tree: Tree, x: Tensor) -> Tensor:
        """Logits [B, C] of x [B, *input_shape] with the weights `tree`."""
        return cast(Tensor, functional_call(self._net, self._entries_of_net(tree), (x,)))

    def features(self, tree: Tree, x: Tensor) -> Tensor:
        """Features [B, d] of x [B, *input_shape] with the weights `tree`."""
        prefixed = {f"net.{name}": tensor for name, tensor in self._entries_of_net(tree).items()}
        return cast(Tensor, functional_call(self._features, prefixed, (x,)))

    def classify(self, tree: Tree, maps: Tensor) -> Tensor:
        """Logits [B, C] of the classifier block on `maps` [B, f]; `tree` holds its weights ("head.weight", ...)."""
        return cast(Tensor, functional_call(self._classifier, tree, (maps,)))

    def _entries_of_net(self, tree: Tree) -> Tree:
        return {name: value for name, value in tree.items() if name in self._names}


def _non_persistent_buffers(module: nn.Module) -> list[Tensor]:
    """Buffers outside the state dict: no tree carries them, so the copy shares their values."""
    named = ((name, module._buffers[name]) for name in module._non_persistent_buffers_set)
    return [buffer for _, buffer in named if buffer is not None]


def _placeholder(tensor: Tensor) -> Tensor:
    """A tensor of the same shape and dtype without memory."""
    empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty


class _Features(nn.Module):
    """A net's `features` as a module."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.net.features(x)


class _Classifier(nn.Module):
    """A net's classifier block as a module, its submodules under their own names."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self._order = net.classifier_block
        for name in self._order:
            self.add_module(name, net.get_submodule(name))
        self.eval()

    def forward(self, maps: Tensor) -> Tensor:
        hidden = maps
        for name in self._order:
            hidden = self._modules[name](hidden)  # type: ignore[misc]
        return hidden
