"""A net that computes with weights handed to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.func import functional_call

from fedloom.core.trees import Tree
from fedloom.nets.live import take_over
from fedloom.nets.net import Net


class Functional(nn.Module):
    """`net` as a function of its weights. Its own are not touched, its mode (training or not) is."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        entries = [*self.named_parameters(), *self.named_buffers()]
        self._once = {name for name, _ in entries}  # a tensor under several names has the first of them
        self._buffers_of_net = [name for name, _ in self.named_buffers()]

    def call(self, function: Callable[..., Any], tree: Tree, *arguments: Any) -> Any:
        """`function(net, *arguments)`, the net having the weights `tree`; buffers in it are updated in place.

        Raises `ConfigError` for a buffer that gets another shape or dtype.
        """
        named = {f"net.{name}": value for name, value in tree.items()}
        entries = {name: value for name, value in named.items() if name in self._once}
        after = dict(entries)
        result = functional_call(self, after, (function, *arguments))
        for name in self._buffers_of_net:
            if name in entries and after[name] is not entries[name]:  # the net has put another tensor in its place
                take_over(name.removeprefix("net."), entries[name], after[name])
        return result

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.net, *arguments)
