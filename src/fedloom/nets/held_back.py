"""Frozen parameters that stay where they are: the net keeps them, and its tree does not have them."""

from __future__ import annotations

from torch import Tensor, nn


def hold_back(net: nn.Module) -> None:
    """Take the parameters that need no gradient out of the net's tree.

    They become buffers that are no part of the net's state: it computes with them, nothing loads, sends or stores
    them. Other buffers stay in the tree, because training moves them.
    """
    for module in net.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter, persistent=False)


def give_back(net: nn.Module) -> None:
    """Make them parameters again, so that the net's state is whole."""
    for module in net.modules():
        for name, buffer in list(module._buffers.items()):
            if isinstance(buffer, nn.Parameter):
                del module._buffers[name]
                module._non_persistent_buffers_set.discard(name)
                module.register_parameter(name, buffer)


def held_back(net: nn.Module) -> list[Tensor]:
    """The parameters that `hold_back` took out."""
    return [buffer for buffer in net.buffers() if isinstance(buffer, nn.Parameter)]
