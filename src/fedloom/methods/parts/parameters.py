"""The trained entries of a tree, over which control variates, momenta and linear terms are taken."""

from __future__ import annotations

import torch

from fedloom.core.trees import Tree, select
from fedloom.methods.contract.contexts import Task
from fedloom.methods.contract.phases import TRAINABLE


def parameters(tree: Tree, task: Task) -> Tree:
    """Select the trained entries of `tree`, in its order, without a copy."""
    return select(tree, task.names(TRAINABLE))


def trained(tree: Tree, task: Task) -> Tree:
    """Select the trained entries that no one froze: frozen ones are equal everywhere, and would count as likeness."""
    return {name: value for name, value in parameters(tree, task).items() if name not in task.frozen}


def zeros(task: Task) -> Tree:
    """Create a tree of zeros for the trained entries of the net."""
    return {name: torch.zeros_like(value) for name, value in parameters(task.init, task).items()}


def difference(tree: Tree, other: Tree) -> Tree:
    """Subtract the entries of `other` from those of `tree`, with the bits of a difference in float64 that is rounded.

    Example:
        >>> difference({"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])})
        {'w': tensor([2.])}
    """
    return {name: value - other[name] for name, value in tree.items()}
