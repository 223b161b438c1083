"""Training at the server: gradient steps on a function of a tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

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
        loss: maps a tree to a scalar; called once a step.
        tree: the weights to start from.
        lr: size of a step.
        steps: number of steps.
        adam: the steps of Adam (Kingma & Ba), from fresh moments, in place of plain ones.
        cosine: `lr` falls to 0 along half a cosine.
    """
    names, values = list(tree), [value.detach() for value in tree.values()]
    first, second = ([torch.zeros_like(value) for value in values if adam] for _ in range(2))
    for step in range(steps):
        rate = lr * (1 + math.cos(math.pi * step / steps)) / 2 if cosine else lr
        leaves = [value.detach().requires_grad_() for value in values]
        with torch.enable_grad():
            moves = torch.autograd.grad(loss(dict(zip(names, leaves, strict=True))), leaves)
        with torch.no_grad():
            directions = _adam(first, second, moves, step + 1) if adam else moves
            values = list(torch._foreach_sub(leaves, torch._foreach_mul(directions, rate)))
    return dict(zip(names, values, strict=True)) if steps else tree


def _adam(first: list[Tensor], second: list[Tensor], gradients: tuple[Tensor, ...], step: int) -> tuple[Tensor, ...]:
    """Return the directions of a step of Adam, and update its moments in place."""
    beta1, beta2 = BETAS
    torch._foreach_mul_(first, beta1)
    torch._foreach_add_(first, torch._foreach_mul(gradients, 1 - beta1))
    squares = torch._foreach_mul(gradients, gradients)
    torch._foreach_mul_(squares, 1 - beta2)
    torch._foreach_mul_(second, beta2)
    torch._foreach_add_(second, squares)
    scales = torch._foreach_div(second, 1 - beta2**step)
    torch._foreach_sqrt_(scales)
    torch._foreach_add_(scales, EPS)
    directions = torch._foreach_div(first, 1 - beta1**step)
    torch._foreach_div_(directions, scales)
    return directions


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
