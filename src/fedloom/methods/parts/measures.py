"""Functions of a net and a batch for statistics; gradient steps and a generator of prototypes at the server."""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import fedloom.methods as fm
from fedloom.nets.net import tree_of


def features(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return the head's input [B, d] of a `batch`, a measure for statistics of `net`."""
    return net.features(batch.x)


def probabilities(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return the softmax outputs [B, C] of `net` on a `batch`, a measure for statistics."""
    return torch.softmax(net(batch.x), dim=1)


def logits(net: fm.Net, batch: fm.Batch, consts: fm.Consts) -> Tensor:
    """Return the outputs [B, C] of `net` on a `batch`, a measure for statistics."""
    outputs: Tensor = net(batch.x)
    return outputs


BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam, as in its paper


def descended(
    loss: Callable[[fm.Tree], Tensor], tree: fm.Tree, lr: float, steps: int, *, adam: bool = False, cosine: bool = False
) -> fm.Tree:
    """Take gradient steps from `tree` on `loss`, which is called once a step with tensors that change in place. `adam`:
    steps of Adam (Kingma & Ba) with fresh moments; `cosine`: `lr` falls to 0 along half a cosine."""
    if not steps:
        return tree
    trained = {name: value.detach().clone().requires_grad_() for name, value in tree.items()}
    leaves = list(trained.values())
    moments = torch.zeros(2, sum(leaf.numel() for leaf in leaves) if adam else 0, dtype=leaves[0].dtype)
    for step in range(steps):
        # the first step takes lr in full, and no step takes 0
        rate = lr * (1 + math.cos(math.pi * step / steps)) / 2 if cosine else lr
        with torch.enable_grad():
            gradients = torch.autograd.grad(loss(trained), leaves)
        with torch.no_grad():
            moves = _adam(moments, gradients, step + 1, rate) if adam else torch._foreach_mul(gradients, rate)
            torch._foreach_sub_(leaves, moves)
    return {name: leaf.detach() for name, leaf in trained.items()}


def _adam(moments: Tensor, gradients: Sequence[Tensor], step: int, rate: float) -> list[Tensor]:
    """Update Adam's moments [2, n] in place, and return the moves. Small calls are slow, so there is one vector."""
    first, second = moments
    beta1, beta2 = BETAS
    gradient = torch.cat([entry.flatten() for entry in gradients])
    first.mul_(beta1).add_(gradient * (1 - beta1))
    second.mul_(beta2).add_((gradient * gradient).mul_(1 - beta2))
    # eps is added after the correction, as in torch.optim.Adam and in the paper
    scales = (second / (1 - beta2**step)).sqrt_().add_(EPS)
    moves = (first / (1 - beta1**step)).div_(scales).mul_(rate)
    pieces = moves.split([entry.numel() for entry in gradients])
    return [piece.view_as(entry) for piece, entry in zip(pieces, gradients, strict=True)]


def batches(samples: int, size: int | None, rng: np.random.Generator) -> Iterator[Tensor]:
    """Yield the rows of batches [b] without end, pass after pass, each shuffled by `rng`; all rows in order if `size`
    is None or at least `samples`."""
    while True:
        if size is None or size >= samples:
            yield torch.arange(samples)
        else:
            yield from torch.split(torch.from_numpy(rng.permutation(samples)), size)


def first_generator(task: fm.Task) -> fm.Tree:
    """Draw the weights of a generator of prototypes."""
    with task.streams.isolated("generator"):
        width = task.feature_dim
        net = nn.ModuleDict({"middle": nn.Linear(width, width), "out": nn.Linear(width, width)})
        return {"embedding": torch.randn(task.num_classes, width), **tree_of(net)}


def generated(tree: fm.Tree) -> Tensor:
    """Return the prototypes [C, d] of a generator: embedding -> linear -> ReLU -> linear."""
    hidden = functional.linear(tree["embedding"], tree["middle.weight"], tree["middle.bias"]).relu()
    return functional.linear(hidden, tree["out.weight"], tree["out.bias"])


def generated_table(tree: fm.Tree) -> fm.ClassTable:
    """Return the prototypes of a generator as a table, float32, in which every class is held."""
    prototypes = generated(tree).to(torch.float32)
    return fm.ClassTable(prototypes, torch.ones(len(prototypes), dtype=torch.bool))


def labelled_rows(tables: fm.ClassTable, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the rows [R, d] of tables [m, C, d], one for each client and class it holds, and their classes [R]."""
    return tables.values[tables.held].to(dtype), tables.held.nonzero()[:, 1]
