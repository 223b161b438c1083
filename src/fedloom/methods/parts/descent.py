"""Training at the server: plain gradient descent on a function of a tree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedloom.core.trees import Tree


def descended(loss: Callable[[Tree], Tensor], tree: Tree, lr: float, steps: int) -> Tree:
    """`tree` after so many steps of size `lr` down the gradient of `loss`, a scalar."""
    for _ in range(steps):
        leaves = {name: value.detach().requires_grad_() for name, value in tree.items()}
        with torch.enable_grad():
            moves = torch.autograd.grad(loss(leaves), list(leaves.values()))
        tree = {name: leaf.detach() - lr * move for (name, leaf), move in zip(leaves.items(), moves, strict=True)}
    return tree
