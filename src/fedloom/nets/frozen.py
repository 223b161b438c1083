"""What a net computes with weights that are handed to it, in evaluation mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.trees import Tree
from fedloom.nets.copies import copied

if TYPE_CHECKING:
    from fedloom.nets.net import Net


class Frozen:
    """What a net computes, without its weights: in evaluation mode, with a tree that comes as an argument.

    For teachers, anchors and foreign classifiers. It has no memory of its own, and gradients reach only what is given
    to it: pass detached trees. A tree may have more entries than the net. `trained`: names of the entries that train.
    """

    def __init__(self, net: Net) -> None:
        kept = {id(buffer) for module in net.modules() for buffer in _extra_buffers(module)}
        hollow = {
            id(tensor): _on_meta(tensor) for tensor in [*net.parameters(), *net.buffers()] if id(tensor) not in kept
        }
        self._net = copied(net, hollow).eval()
        entries = [*self._net.named_parameters(), *self._net.named_buffers()]
        self._names = {name for name, _ in entries}  # a tensor under several names has the first of them
        self.trained = frozenset(name for name, _ in self._net.named_parameters())
        self._features = _Features(self._net)
        self._classifier = _Classifier(self._net)

    def logits(self, tree: Tree, x: Tensor) -> Tensor:
        """The net with the weights `tree`: x [B, *input_shape] -> [B, C]."""
        return cast(Tensor, functional_call(self._net, self._known(tree), (x,)))

    def features(self, tree: Tree, x: Tensor) -> Tensor:
        """The net's features with the weights `tree`: x [B, *input_shape] -> [B, d]."""
        return cast(
            Tensor, functional_call(self._features, {f"net.{n}": t for n, t in self._known(tree).items()}, (x,))
        )

    def classify(self, tree: Tree, maps: Tensor) -> Tensor:
        """The net's classifier block with the weights `tree` ("head.weight", ...): maps [B, f] -> [B, C]."""
        return cast(Tensor, functional_call(self._classifier, tree, (maps,)))

    def _known(self, tree: Tree) -> Tree:
        return {name: value for name, value in tree.items() if name in self._names}


def _extra_buffers(module: nn.Module) -> list[Tensor]:
    """Buffers that no tree carries: they stay as they are."""
    named = ((name, module._buffers[name]) for name in module._non_persistent_buffers_set)
    return [buffer for _, buffer in named if buffer is not None]


def _on_meta(tensor: Tensor) -> Tensor:
    """A stand-in without memory."""
    like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return nn.Parameter(like, requires_grad=False) if isinstance(tensor, nn.Parameter) else like


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
        h = maps
        for name in self._order:
            h = self._modules[name](h)  # type: ignore[misc]
        return h
