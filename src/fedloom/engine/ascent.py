"""Moves of the weights for the second pass of a step, whose gradients are taken elsewhere (`Train.ascent`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from fedloom.core.trees import Tree
from fedloom.methods.contract.phases import Consts
from fedloom.nets.loaded_net import LoadedNet


@torch.no_grad()
def ascent_moves(
    ascent: Callable[[Tree, Tree, Consts], Tree], gradients: Sequence[Tensor], trainable: Tree, consts: Consts
) -> Tree:
    """Return by how much each parameter moves before the second pass, by name.

    Args:
        ascent: the phase's function of gradients, parameters and constants.
        gradients: those of the first pass, in the order of the parameters.
        trainable: the parameters by name.
        consts: constants of the phase.
    """
    return ascent(dict(zip(trainable, gradients, strict=True)), trainable, consts)


@contextlib.contextmanager
def moved(loaded_net: LoadedNet, trainable: Tree, moves: Tree) -> Iterator[None]:
    """Move parameters of a net in the block. After it they are as before, bit for bit, and so are all buffers.

    Args:
        loaded_net: the net; the block may change its buffers, as batch norm does in training.
        trainable: its trainable parameters by name.
        moves: what is added to some of them, by name.
    """
    tensors = [*loaded_net.buffers(), *(trainable[name] for name in moves)]
    with torch.no_grad():
        values = [tensor.clone() for tensor in tensors]
        for name, move in moves.items():
            trainable[name].add_(move)
    yield
    loaded_net.restore_buffers()
    with torch.no_grad():
        if tensors:
            torch._foreach_copy_(tensors, values)
