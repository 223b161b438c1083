"""Training at the server: plain gradient descent on a function of a tree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedloom.core.trees import Tree


def descended(loss: Callable[[Tree], Tensor], tree: Tree, lr: float, steps: int) -> Tree:
    """`tree` after so many steps of size `lr` down the gradient of `loss`, a scalar."""
    gradient = torch.func.grad(loss)
    for _ in range(steps):
        moves = gradient(tree)
        tree = {name: value - lr * moves[name] for name, value in tree.items()}
    return tree
