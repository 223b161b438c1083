"""Calls on a net whose weights come as arguments, in training mode too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.func import functional_call

from fedloom.core.trees import Tree
from fedloom.nets.loaded_net import copy_replaced_buffer
from fedloom.nets.net import Net


class FunctionalCall(nn.Module):
    """Call functions of `net` with weights that are passed in. The net's own weights stay, its mode may change."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        entries = [*self.named_parameters(), *self.named_buffers()]
        self._unique_names = {name for name, _ in entries}  # of a tensor with several names, the first
        self._buffer_names = [name for name, _ in self.named_buffers()]

    def call(self, function: Callable[..., Any], tree: Tree, *arguments: Any) -> Any:
        """Return `function(net, *arguments)` with the weights `tree`, whose buffers are updated in place.

        Raises `ConfigError` for a buffer that changes its shape or dtype.
        """
        prefixed = {f"net.{name}": tensor for name, tensor in tree.items()}
        entries = {name: tensor for name, tensor in prefixed.items() if name in self._unique_names}
        after = dict(entries)
        result = functional_call(self, after, (function, *arguments))
        for name in self._buffer_names:
            if name in entries and after[name] is not entries[name]:  # the net has assigned a new tensor
                copy_replaced_buffer(name.removeprefix("net."), entries[name], after[name])
        return result

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.net, *arguments)
