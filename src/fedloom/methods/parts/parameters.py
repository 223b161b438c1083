"""The entries that gradients move: what control variates, momenta and linear terms are over. Not buffers."""

from __future__ import annotations

import torch

from fedloom.core.trees import Tree, select
from fedloom.methods.contract.contexts import Task
from fedloom.methods.contract.phases import TRAINABLE


def parameters(tree: Tree, task: Task) -> Tree:
    """The entries of `tree` that are trained, in its order, not copied."""
    return select(tree, task.names(TRAINABLE))


def zeros(task: Task) -> Tree:
    """A zero for every trained entry of the net."""
    return {name: torch.zeros_like(value) for name, value in parameters(task.init, task).items()}
