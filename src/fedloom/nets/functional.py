"""A net that computes with weights handed to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.func import functional_call

from fedloom.core.trees import Tree
from fedloom.nets.net import Net


class Functional(nn.Module):
    """`net` as a function of its weights. Its own are not touched, its mode (training or not) is."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net
        entries = [*self.named_parameters(), *self.named_buffers()]
        self._once = {name for name, _ in entries}  # a tensor under several names has the first of them

    def call(self, function: Callable[..., Any], tree: Tree, *arguments: Any) -> Any:
        """`function(net, *arguments)`, the net having the weights `tree`; buffers in it are updated in place."""
        named = {f"net.{name}": value for name, value in tree.items()}
        entries = {name: value for name, value in named.items() if name in self._once}
        return functional_call(self, entries, (function, *arguments))

    def forward(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(self.net, *arguments)
