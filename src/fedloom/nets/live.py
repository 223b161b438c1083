"""A net in memory whose weights are exchanged in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.nets.groups import group_of
from fedloom.nets.held_back import held_back
from fedloom.nets.net import Net, tree_of


class Live:
    """`net` and its live tensors by name. Loading copies values; the tensors stay where they are.

    A net may put new tensors in place of its buffers (`self.mean = 0.9 * self.mean + ...`): `settle` takes their values
    over, and puts the old tensors back.
    """

    def __init__(self, net: Net) -> None:
        self.net = net
        order = torch.channels_last if net.channels_last else torch.contiguous_format
        for parameter in [*net.parameters(), *held_back(net).values()]:
            if parameter.dim() == 4:  # of two-dimensional convolutions; channels last does not exist for others
                # `contiguous` leaves weights of one channel alone, and convolutions then compute in plain order
                parameter.data = parameter.data.clone(memory_format=order)
        self.tree = tree_of(net)
        self.parameters = dict(net.named_parameters())
        self._buffers = [
            (module, name, path, buffer)
            for prefix, module in net.named_modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and (path := f"{prefix}.{name}".lstrip(".")) in self.tree
        ]

    def settle(self) -> None:
        """Values of buffers that the net has replaced, in the tensors that they were in. Raises `ConfigError` for one
        that has another shape or dtype now."""
        for module, name, path, buffer in self._buffers:
            replacement = module._buffers[name]
            if replacement is not buffer:
                take_over(path, buffer, replacement)
                module._buffers[name] = buffer

    def load(self, tree: Tree) -> None:
        """Copy `tree` into the net."""
        for module, name, _, buffer in self._buffers:
            module._buffers[name] = buffer
        with torch.no_grad():
            torch._foreach_copy_(list(self.tree.values()), [tree[name] for name in self.tree])

    def weights(self, room: Callable[[Tensor], Tensor] | None = None) -> Tree:
        """A copy of the net's tensors, on the CPU, in the plain memory order. `room` makes memory for one of them."""
        self.settle()
        if room is not None:
            return {name: room(value).copy_(value.detach()) for name, value in self.tree.items()}
        plain = torch.contiguous_format
        return {n: value.detach().to("cpu", copy=True, memory_format=plain) for n, value in self.tree.items()}


@torch.no_grad()
def take_over(path: str, buffer: Tensor, replacement: Tensor | None) -> None:
    """Copy into `buffer`, called `path`, what a net has put in its place. Raises `ConfigError` if that does not fit."""
    if replacement is None or replacement.shape != buffer.shape or replacement.dtype != buffer.dtype:
        changed = "nothing" if replacement is None else f"{list(replacement.shape)} of {replacement.dtype}"
        raise ConfigError(
            f"buffer {path}: the model replaces {list(buffer.shape)} of {buffer.dtype} by {changed}; a buffer keeps "
            "its shape and dtype, because it is averaged and stored"
        )
    buffer.copy_(replacement)


def live_of(lives: Sequence[Live], client: int) -> Live:
    """The one that fits a client's trees; of -1, the server's."""
    return lives[0 if client < 0 else group_of(client, lives)]
