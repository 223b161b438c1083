"""Membership of samples in the training set, from their loss under a model: Yeom et al. 2018, arXiv 1709.01604."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedloom.core.errors import ConfigError
from fedloom.core.trees import Tree
from fedloom.nets.net import Net


def losses_of(net: Net, tree: Tree, x: Tensor, y: Tensor) -> Tensor:
    """Return the cross-entropy of each sample [n] under the weights `tree`, in evaluation mode.

    Args:
        net: the network.
        tree: its weights.
        x: inputs [n, ...].
        y: labels [n], int64.
    """
    with torch.no_grad():
        return cross_entropy(net.functional.logits(tree, x), y, reduction="none").double()


def membership_auc(members: Tensor, others: Tensor) -> float:
    """Return the area under the curve of "a low loss means a member": 0.5 tells nothing, 1 tells all.

    It is the probability that a member's loss is below another sample's, ties by half. No threshold is chosen.

    Args:
        members: losses of training samples [n].
        others: losses of samples that were not trained on [k].

    Raises `ConfigError` if there is none of either.

    Example:
        >>> membership_auc(torch.tensor([0.1, 0.4]), torch.tensor([0.3, 0.5]))
        0.75
    """
    if not len(members) or not len(others):
        raise ConfigError(f"{len(members)} members and {len(others)} others: an area under a curve needs both")
    ordered = torch.nan_to_num(others.double(), nan=torch.inf).sort().values
    losses = torch.nan_to_num(members.double(), nan=torch.inf)
    above = len(ordered) - torch.searchsorted(ordered, losses, right=True)
    equal = torch.searchsorted(ordered, losses, right=True) - torch.searchsorted(ordered, losses)
    return float((above + 0.5 * equal).mean() / len(ordered))
