"""A net in memory whose weights are exchanged in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.nets.groups import group_of
from fedloom.nets.held_back import held_back
from fedloom.nets.net import Net, tree_of


class Live:
    """`net` and its live tensors by name. Loading copies values; the tensors stay where they are."""

    def __init__(self, net: Net) -> None:
        self.net = net
        order = torch.channels_last if net.channels_last else torch.contiguous_format
        for parameter in [*net.parameters(), *held_back(net).values()]:
            if parameter.dim() == 4:  # of two-dimensional convolutions; channels last does not exist for others
                # `contiguous` leaves weights of one channel alone, and convolutions then compute in plain order
                parameter.data = parameter.data.clone(memory_format=order)
        self.tree = tree_of(net)
        self.parameters = dict(net.named_parameters())

    def load(self, tree: Tree) -> None:
        """Copy `tree` into the net."""
        with torch.no_grad():
            torch._foreach_copy_(list(self.tree.values()), [tree[name] for name in self.tree])

    def weights(self, room: Callable[[Tensor], Tensor] | None = None) -> Tree:
        """A copy of the net's tensors, on the CPU, in the plain memory order. `room` makes memory for one of them."""
        if room is not None:
            return {name: room(value).copy_(value.detach()) for name, value in self.tree.items()}
        plain = torch.contiguous_format
        return {n: value.detach().to("cpu", copy=True, memory_format=plain) for n, value in self.tree.items()}


def live_of(lives: Sequence[Live], client: int) -> Live:
    """The one that fits a client's trees; of -1, the server's."""
    return lives[0 if client < 0 else group_of(client, lives)]
