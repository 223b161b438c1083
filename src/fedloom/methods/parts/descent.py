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

    adam: the steps of Adam (Kingma & Ba), from fresh moments, in place of plain ones. cosine: `lr` falls to 0 along
    half a cosine.
    """
    moments = {name: (torch.zeros_like(value), torch.zeros_like(value)) for name, value in tree.items() if adam}
    for step in range(steps):
        rate = lr * (1 + math.cos(math.pi * step / steps)) / 2 if cosine else lr
        leaves = {name: value.detach().requires_grad_() for name, value in tree.items()}
        with torch.enable_grad():
            moves = torch.autograd.grad(loss(leaves), list(leaves.values()))
        tree = {}
        for (name, leaf), move in zip(leaves.items(), moves, strict=True):
            if adam:
                moments[name] = _moved(moments[name], move)
                move = _direction(moments[name], step + 1)
            tree[name] = leaf.detach() - rate * move
    return tree


def _moved(moments: tuple[Tensor, Tensor], gradient: Tensor) -> tuple[Tensor, Tensor]:
    (first, second), (beta1, beta2) = moments, BETAS
    return first * beta1 + gradient * (1 - beta1), second * beta2 + gradient.square() * (1 - beta2)


def _direction(moments: tuple[Tensor, Tensor], step: int) -> Tensor:
    first, second = (moment / (1 - beta**step) for moment, beta in zip(moments, BETAS, strict=True))
    return first / (second.sqrt() + EPS)


def batches(samples: int, size: int | None, rng: np.random.Generator) -> Iterator[Tensor]:
    """Indices of batches, without end: pass after pass over shuffled samples, the last batch smaller; of all for None.

    In stored order where a batch is all samples.
    """
    while True:
        if size is None or size >= samples:
            yield torch.arange(samples)
        else:
            yield from torch.split(torch.from_numpy(rng.permutation(samples)), size)
