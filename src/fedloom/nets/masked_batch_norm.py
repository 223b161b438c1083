"""Batch norm that leaves padding rows out, for engines that pad their batches."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from fedloom.nets.deep_copy import deep_copy
from fedloom.nets.net import Net
from fedloom.nets.roles import BATCH_NORM


class RowMask:
    """The rows of the current batch that are samples and not padding: `mask` [B] bool, or None for all rows."""

    mask: Tensor | None = None


class MaskedBatchNorm(nn.Module):
    """`norm` with statistics over the unmasked rows. It shares the entries of `norm`, and without a mask calls it."""

    def __init__(self, norm: nn.BatchNorm2d, rows: RowMask) -> None:
        super().__init__()
        self._norm_holder, self._rows = (
            [norm],
            rows,
        )  # a list, so that the norm is no child and entries keep their names
        self._parameters, self._buffers = norm._parameters, norm._buffers

    def forward(self, x: Tensor) -> Tensor:
        norm, mask = self._norm_holder[0], self._rows.mask
        norm.training = self.training
        if mask is None or not (self.training or norm.running_mean is None):
            return cast(Tensor, norm(x))
        dtype, x = x.dtype, x.float() if x.dtype == torch.bfloat16 else x
        reduced_dims = [0, *range(2, x.dim())]
        channel_shape = (1, -1, *(1,) * (x.dim() - 2))
        row_mask = mask.view(-1, *(1,) * (x.dim() - 1))
        count = mask.sum() * (x[0, 0].numel())
        mean = torch.where(row_mask, x, 0.0).sum(reduced_dims) / count
        centred = x - mean.view(channel_shape)
        squares = torch.where(row_mask, centred.square(), 0.0).sum(reduced_dims)
        if self.training and norm.running_mean is not None and norm.running_var is not None:
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
