"""Functions of a net, a batch and constants for the statistics `ClassMeans` and `SampleMean`."""

from __future__ import annotations

import torch
from torch import Tensor

from fedloom.methods.contract.phases import Batch, Consts
from fedloom.nets.net import Net


def features(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """Return the head's input [B, d]: a measure for statistics.

    Args:
        net: the net in evaluation mode.
        batch: its inputs are read.
        consts: not used.
    """
    return net.features(batch.x)


def probabilities(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """Return softmax outputs [B, C] of temperature 1: a measure for statistics.

    Args:
        net: the net in evaluation mode.
        batch: its inputs are read.
        consts: not used.
    """
    return torch.softmax(net(batch.x), dim=1)


def logits(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """Return the net's outputs [B, C]: a measure for statistics.

    Args:
        net: the net in evaluation mode.
        batch: its inputs are read.
        consts: not used.
    """
    outputs: Tensor = net(batch.x)
    return outputs


def inputs(net: Net, batch: Batch, consts: Consts) -> Tensor:
    """Return the inputs as nets see them [B, ...]: a measure for statistics.

    Args:
        net: not used.
        batch: its inputs are returned.
        consts: not used.
    """
    return batch.x
