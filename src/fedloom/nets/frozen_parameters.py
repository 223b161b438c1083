"""Parameters that need no gradient: a net computes with them, and no method can train them."""

from __future__ import annotations

from torch import Tensor, nn


def freeze_as_buffers(net: nn.Module, *, persistent: bool) -> None:
    """Turn the parameters that need no gradient into buffers, so that loops over parameters leave them alone.

    Args:
        net: the net, which changes.
        persistent: whether they stay in the net's state dict, and so in the tree that is loaded, sent and stored.
    """
    for module in net.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter, persistent=persistent)


def unfreeze_buffers(net: nn.Module) -> None:
    """Undo `freeze_as_buffers`: the buffers are parameters again, and in the state dict."""
    for module in net.modules():
        for name, buffer in list(module._buffers.items()):
            if isinstance(buffer, nn.Parameter):
                del module._buffers[name]
                module._non_persistent_buffers_set.discard(name)
                module.register_parameter(name, buffer)


def frozen_parameters(net: nn.Module) -> dict[str, Tensor]:
    """Return by name the parameters that `freeze_as_buffers` has turned into buffers."""
    return {name: buffer for name, buffer in net.named_buffers() if isinstance(buffer, nn.Parameter)}
