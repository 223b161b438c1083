"""Frozen parameters: part of what a net computes with, and nothing that a method could train."""

from __future__ import annotations

from torch import Tensor, nn


def hold_back(net: nn.Module, *, travels: bool) -> None:
    """Make buffers of the parameters that need no gradient, so that no loop over parameters moves them.

    travels: whether they stay in the net's state, and so in its tree: what is loaded, sent and stored.
    """
    for module in net.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter, persistent=travels)


def give_back(net: nn.Module) -> None:
    """Make them parameters again, so that the net's state is whole."""
    for module in net.modules():
        for name, buffer in list(module._buffers.items()):
            if isinstance(buffer, nn.Parameter):
                del module._buffers[name]
                module._non_persistent_buffers_set.discard(name)
                module.register_parameter(name, buffer)


def held_back(net: nn.Module) -> dict[str, Tensor]:
    """The parameters that `hold_back` made buffers of, by name."""
    return {name: buffer for name, buffer in net.named_buffers() if isinstance(buffer, nn.Parameter)}
