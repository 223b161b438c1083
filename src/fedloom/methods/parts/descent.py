"""Training at the server: gradient steps on a function of a tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedloom.core.trees import Tree

BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam, as in its paper


def descended(
    loss: Callable[[Tree], Tensor], tree: Tree, lr: float, steps: int, *, adam: bool = False, cosine: bool = False
) -> Tree:
    """Descend from `tree` by a number of steps of size `lr` on `loss`, a scalar that is called once a step.

    Args:
        loss: maps a tree to a scalar; called once a step, with tensors that the steps change in place.
        tree: the weights to start from.
        lr: size of a step.
        steps: number of steps.
        adam: the steps of Adam (Kingma & Ba), from fresh moments, in place of plain ones.
        cosine: `lr` falls to 0 along half a cosine.
    """
    if not steps:
        return tree
    trained = {name: value.detach().clone().requires_grad_() for name, value in tree.items()}
    leaves = list(trained.values())
    moments = torch.zeros(2, sum(leaf.numel() for leaf in leaves) if adam else 0, dtype=leaves[0].dtype)
    for step in range(steps):
        rate = lr * (1 + math.cos(math.pi * step / steps)) / 2 if cosine else lr
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss(trained), leaves)
        with torch.no_grad():
            moves = _adam(moments, gradients, step + 1, rate) if adam else torch._foreach_mul(gradients, rate)
            torch._foreach_sub_(leaves, moves)
    return {name: leaf.detach() for name, leaf in trained.items()}


def _adam(moments: Tensor, gradients: Sequence[Tensor], step: int, rate: float) -> list[Tensor]:
    """Return the moves of a step of Adam, and update its moments [2, n] in place.

    All entries are one vector meanwhile, because what is small costs by the call.
    """
    first, second = moments
    beta1, beta2 = BETAS
    gradient = torch.cat([entry.flatten() for entry in gradients])
    first.mul_(beta1).add_(gradient * (1 - beta1))
    second.mul_(beta2).add_((gradient * gradient).mul_(1 - beta2))
    scales = (second / (1 - beta2**step)).sqrt_().add_(EPS)
    moves = (first / (1 - beta1**step)).div_(scales).mul_(rate)
    pieces = moves.split([entry.numel() for entry in gradients])
    return [piece.view_as(entry) for piece, entry in zip(pieces, gradients, strict=True)]


def batches(samples: int, size: int | None, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield the row numbers of batches [b] int64 without end: pass after pass, each shuffled.

    Args:
        samples: number of samples n.
        size: samples of a batch; the last of a pass may have fewer. None, or n and more, yields all rows in stored
            order.
        rng: shuffles the passes.
    """
    while True:
        if size is None or size >= samples:
            yield torch.arange(samples)
        else:
            yield from torch.split(torch.from_numpy(rng.permutation(samples)), size)
