"""Batch norm over the rows that count: nets as engines need them that pad their batches."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from fedloom.nets.copies import copied
from fedloom.nets.net import Net
from fedloom.nets.roles import BATCH_NORM


class Rows:
    """Which rows of the batch count in the forward pass that runs now: `mask` [B] bool, or None for all of them."""

    mask: Tensor | None = None


class MaskedBatchNorm(nn.Module):
    """`norm` with statistics over the rows that count; entries, and everything without a mask, as in `norm`."""

    def __init__(self, norm: nn.BatchNorm2d, rows: Rows) -> None:
        super().__init__()
        self._plain, self._rows = [norm], rows  # in a list: no child, the entries keep their names
        self._parameters, self._buffers = norm._parameters, norm._buffers

    def forward(self, x: Tensor) -> Tensor:
        norm, mask = self._plain[0], self._rows.mask
        norm.training = self.training
        if mask is None or not (self.training or norm.running_mean is None):
            return cast(Tensor, norm(x))
        dtype, x = x.dtype, x.float() if x.dtype == torch.bfloat16 else x
        over = [0, *range(2, x.dim())]
        shape = (1, -1, *(1,) * (x.dim() - 2))
        counts = mask.view(-1, *(1,) * (x.dim() - 1))
        count = mask.sum() * (x[0, 0].numel())
        mean = torch.where(counts, x, 0.0).sum(over) / count
        centred = x - mean.view(shape)
        squares = torch.where(counts, centred.square(), 0.0).sum(over)
        if self.training and norm.running_mean is not None and norm.running_var is not None:
            self._remember(norm, mean.detach(), squares.detach() / (count - 1))
        scale = (squares / count + norm.eps).rsqrt()
        scale = scale if norm.weight is None else scale * norm.weight
        normalised = centred * scale.view(shape)
        normalised = normalised if norm.bias is None else normalised + norm.bias.view(shape)
        return normalised.to(dtype)

    @staticmethod
    @torch.no_grad()
    def _remember(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics, with the unbiased variance."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        share = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
        norm.running_mean.add_(share * (mean - norm.running_mean))
        norm.running_var.add_(share * (variance - norm.running_var))


def masked_copy(net: Net) -> tuple[Net, Rows]:
    """A copy of `net` whose batch norms look at `Rows.mask`, and those rows."""
    net, rows = copied(net), Rows()
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, BATCH_NORM):
                setattr(module, name, MaskedBatchNorm(cast(nn.BatchNorm2d, child), rows))
    return net, rows
