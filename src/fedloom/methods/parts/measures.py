"""Functions of a net, a batch and constants for the statistics `ClassMeans` and `SampleMean`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.methods.contract.phases import Batch, Consts
from fedloom.nets.net import Net


def features(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """The head's input [B, d]."""
    return net.features(batch.x)


def probabilities(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """Softmax outputs [B, C], temperature 1."""
    return torch.softmax(net(batch.x), dim=1)
