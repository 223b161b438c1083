"""Gradients changed before a step."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedloom.core.trees import Tree
from fedloom.methods.contract.phases import Consts


def clipped(norm: float) -> Callable[[Tree, Tree, Consts], Tree]:
    """Scale all gradients down together so that their joint 2-norm is at most `norm`; smaller ones stay.

    Example:
        >>> clipped(1.0)({"w": torch.tensor([3.0, 4.0])}, {}, {})
        {'w': tensor([0.6000, 0.8000])}
    """

    def clip(gradients: Tree, parameters: Tree, consts: Consts) -> Tree:
        total = torch.stack([g.square().sum() for g in gradients.values()]).sum().sqrt()
        scale = (norm / total.clamp(min=1e-12)).clamp(max=1.0)
        return {name: gradient * scale for name, gradient in gradients.items()}

    return clip
