"""Nets for stacked training: batch norm that leaves padding rows out, and calls whose weights come as arguments."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedloom.core.trees import Tree
from fedloom.nets.loaded_net import copy_replaced_buffer
from fedloom.nets.net import BATCH_NORM, Net, NetCalls, deep_copy


class RowMask:
    """The rows of the current batch that are samples and not padding: `mask` [B] bool, or None for all rows."""

    mask: Tensor | None = None


class MaskedBatchNorm(nn.Module):
    """`norm` with statistics over the unmasked rows. It shares the entries of `norm`, and without a mask calls it."""

    def __init__(self, norm: nn.BatchNorm2d, rows: RowMask) -> None:
        super().__init__()
        self._norm_holder = [norm]  # a list, so that the norm is no child and entries keep their names
        self._rows = rows
        self._parameters, self._buffers = norm._parameters, norm._buffers  # the dicts: `functional_call` changes both

    def forward(self, x: Tensor) -> Tensor:
        norm, mask = self._norm_holder[0], self._rows.mask
        norm.training = self.training
        if mask is None or not (self.training or norm.running_mean is None):
            return cast(Tensor, norm(x))
        # bfloat16 has too few digits for sums over a batch.
        dtype, x = x.dtype, x.float() if x.dtype == torch.bfloat16 else x
        reduced_dims = [0, *range(2, x.dim())]
        channel_shape = (1, -1, *(1,) * (x.dim() - 2))
        row_mask = mask.view(-1, *(1,) * (x.dim() - 1))
        # The statistics of a channel are over samples and pixels.
        count = mask.sum() * (x[0, 0].numel())
        mean = torch.where(row_mask, x, 0.0).sum(reduced_dims) / count
        centred = x - mean.view(channel_shape)
        squares = torch.where(row_mask, centred.square(), 0.0).sum(reduced_dims)
        if self.training and norm.running_mean is not None and norm.running_var is not None:
            # As in torch, the running variance is unbiased, and the one that normalises is not.
            self._update_running(norm, mean.detach(), squares.detach() / (count - 1))
        scale = (squares / count + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight
        normalised = centred * scale.view(channel_shape)
        normalised = normalised if norm.bias is None else normalised + norm.bias.view(channel_shape)
        return normalised.to(dtype)

    @staticmethod
    @torch.no_grad()
    def _update_running(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards `mean` [c] and the unbiased `variance` [c]."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        # Without a momentum, torch keeps the plain mean over all batches.
        momentum = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
        norm.running_mean.add_(momentum * (mean - norm.running_mean))
        norm.running_var.add_(momentum * (variance - norm.running_var))


def masked_copy(net: Net) -> tuple[Net, RowMask]:
    """Return a copy of `net` whose batch norms leave masked rows out, and the mask that they read."""
    net, rows = deep_copy(net), RowMask()
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, BATCH_NORM):
                setattr(module, name, MaskedBatchNorm(cast(nn.BatchNorm2d, child), rows))
    return net, rows


class FunctionalCall(NetCalls):
    """Call functions of `net` with weights that are passed in. The net's own weights stay, its mode may change."""

    def __init__(self, net: Net) -> None:
        super().__init__(net)
        entries = [*self.named_parameters(), *self.named_buffers()]
        self._unique_names = {name for name, _ in entries}  # of a tensor with several names, the first
        self._buffer_names = [name for name, _ in self.named_buffers()]

    def call(self, function: Callable[..., Any], tree: Tree, *arguments: Any) -> Any:
        """Return `function(net, *arguments)` with the weights `tree`, whose buffers are updated in place."""
        prefixed = {f"net.{name}": tensor for name, tensor in tree.items()}
        entries = {name: tensor for name, tensor in prefixed.items() if name in self._unique_names}
        after = dict(entries)
        result = functional_call(self, after, (function, *arguments))
        for name in self._buffer_names:
            if name in entries and after[name] is not entries[name]:  # the net has assigned a new tensor
                copy_replaced_buffer(name.removeprefix("net."), entries[name], after[name])
        return result
