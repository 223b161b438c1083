"""Copies between the CPU and a device: few, large, and without waiting where the device allows it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedloom.core.trees import Tree


def sent_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the CPU to `device`. On CUDA the copy is queued from pinned memory, and nothing waits for it."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def tree_on(tree: Mapping[str, Tensor], device: torch.device) -> Tree:
    """Copy a tree to `device`, in the plain memory order: one copy for each dtype, as a copy of each entry waits.

    Example:
        >>> tree_on({"w": torch.ones(1, 2), "b": torch.zeros(2)}, torch.device("cpu"))
        {'w': tensor([[1., 1.]]), 'b': tensor([0., 0.])}
    """
    names_by_dtype: dict[torch.dtype, list[str]] = {}
    for name, tensor in tree.items():
        names_by_dtype.setdefault(tensor.dtype, []).append(name)
    copied: Tree = {}
    for names in names_by_dtype.values():
        flat = sent_to(torch.cat([tree[name].detach().reshape(-1) for name in names]), device)
        pieces = torch.split(flat, [tree[name].numel() for name in names])
        copied |= {name: piece.view(tree[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return {name: copied[name] for name in tree}
